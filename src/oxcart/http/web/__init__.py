"""The dashboard: pages that the server renders, with live parts over Server-Sent Events."""

from oxcart.http.web import (
    actions,
    audit,
    dead,
    failures,
    files,
    flow,
    groups,
    history,
    job,
    jobs,
    limits,
    overview,
    queue,
    schedules,
    workers,
)

_PARTS = (
    *(overview, queue, jobs, job, flow, failures, dead, schedules, workers, limits, history, audit),
    *(groups, actions, files),
)

#: The routes of all pages.
PAGES = [route for part in _PARTS for route in part.ROUTES]
