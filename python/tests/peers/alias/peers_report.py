"""A pytest plug-in: the outcome of every test, by name, as JSON."""

import json
import os

_OUTCOMES = {}


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        text = "" if report.outcome == "passed" else str(report.longrepr)[-600:]
        if _OUTCOMES.get(report.nodeid, [""])[0] != "failed":
            _OUTCOMES[report.nodeid] = [report.outcome, text, report.duration]


def pytest_collectreport(report):
    if report.outcome != "passed":
        _OUTCOMES[report.nodeid] = [report.outcome, str(report.longrepr)[-600:], 0.0]


def pytest_deselected(items):
    for item in items:
        _OUTCOMES[item.nodeid] = ["deselected", "", 0.0]


def pytest_sessionfinish(session):
    with open(os.environ["MAXSIM_PEERS_REPORT"], "w") as file:
        json.dump(_OUTCOMES, file)


def pytest_configure(config):
    for mark in ("cuda: needs a device", "slow: takes long"):
        config.addinivalue_line("markers", mark)
