"""What schemathesis is told about this broker; see `mod.rs`."""

import re

import schemathesis

# A request that the document allows may be refused with these words: no schema can say them.
BEYOND_SCHEMAS = [
    # The time decides.
    r"is not after the time it may run",
    r"more than ten years",
    r"is not in the past",
    r"is before 1970",
    # Whole numbers from 2^53 on are written without a fraction, so that none is rounded.
    r"invalid type: floating point `(\d{16,}\.0|\d[\d.]*e\+?\d+)`",
    # Characters are counted by schemas, bytes by the broker.
    r"has \d+ bytes",
    r"has no occurrence up to its end_at",
    # What is inside of a text.
    r"^cursor ",
    r"cron ",
    r"timezone ",
    r"half of a surrogate pair",
    r"not every language could read it",
    # Two moments, or two parameters, that must fit each other.
    r"^from .* is after to ",
    r"^since is for a list that begins with the newest",
    # The number of the cluster's shards.
    r"^spread is \d+; give 1 to",
    # Names that must be those of other parts.
    r"depends on",
    r"has no node ",
    r" twice",
    r"unique\.fields",
]


@schemathesis.hook
def before_call(context, case, kwargs):
    """Waits for nothing: a long poll is allowed to take a minute."""
    for part in (case.body, case.query):
        if isinstance(part, dict) and isinstance(part.get("wait_ms"), int):
            part["wait_ms"] = min(part["wait_ms"], 5)


@schemathesis.check
def what_the_document_allows_is_not_refused(context, response, case):
    """Like the check of schemathesis, but for what is beyond schemas."""
    meta = case.meta
    if meta is None or not meta.generation.mode.is_positive:
        return None
    if response.status_code not in (400, 413, 415, 422):
        return None
    detail = response.json()["detail"]
    if any(re.search(words, detail) for words in BEYOND_SCHEMAS):
        return None
    raise AssertionError(f"the document allows it, and the broker says: {detail}")
