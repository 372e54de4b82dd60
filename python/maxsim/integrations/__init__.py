"""Other packages' scoring, done by this one: a module for each, with ``enable()``.

``enable()`` replaces a framework's scoring functions where it finds them, ``disable()`` puts its
own back. Nothing of a framework is imported before its ``enable()``.
"""
