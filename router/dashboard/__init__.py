"""The dashboard: what the request log says, to be looked at and asked.

In: folders with `requests-<hour>.jsonl[.gz]`. Out: JSON under /dashboard/api/ and the page's
files. It runs in a process of its own (`python -m router.dashboard`), so no query is ever on a
serving process; without a router it is `scenario-router dashboard`.
"""
