"""Makes what all tests share importable in folders too: pytest finds modules beside this file."""
