"""Particulars of a failure's reason, such as ids and numbers. Without them, equal causes are equal.

`oxcart.model.failure_groups` masks reasons in Python and `oxcart.spark.transforms.failures` in Spark, both by
this list. So the groups of jobs on the server and the clusters of the lake are the same. The status of an
HTTP response is no particular: it is what failed.
"""

from __future__ import annotations

#: The longest reason that is compared.
LONGEST = 500

_PHRASES = (
    "Bad Request|Unauthorized|Payment Required|Forbidden|Not Found|Method Not Allowed|Conflict|Gone|"
    "Unprocessable|Too Many Requests|Internal Server Error|Bad Gateway|Service Unavailable|"
    "Gateway Time-?out|Client Error|Server Error"
)
#: Patterns and what they become, in this order. Python and Java read them alike; ``$1`` is a group.
PARTICULARS = (
    # An underscore protects the status of a response from the patterns of ids and numbers.
    (r"(?i)\b((?:https?(?:/\d(?:\.\d)?)?|status(?:[ _-]?code)?)['\"]?[\s:=(]{1,3})([1-5]\d\d)\b", "$1_$2"),
    (rf"'([45]\d\d)( (?i:{_PHRASES}))'", "_$1$2"),
    (rf"\b([45]\d\d)(?=:? (?i:{_PHRASES})\b)", "_$1"),
    # Our own reason of a parent names the key of the child.
    (r"\bchild ([^\s:]+:[^\s:]+):\S+ failed\b", "child $1:<id> failed"),
    (r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}", "<id>"),
    (r"[\w.+-]+@[\w-]+(\.[\w-]+)+", "<email>"),
    (r"[a-z][a-z0-9+]*://[^\s'\"]+", "<url>"),
    (r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", "<time>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b", "<address>"),
    (r"(?<![\w<])/[\w.-]+(/[\w.-]+)+", "<path>"),
    (r"'[^']*'|\"[^\"]*\"", "<text>"),
    (r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{16,}\b", "<hex>"),
    (r"(?<![\w.+-])[-+]?\d+(\.\d+)?[eE][-+]?\d+\b", "<n>"),
    # An id of letters and digits: user42, ORD-7731-x.
    (r"\b(?!_[1-5]\d\d\b)(?=[\w-]*\d)[\w-]*[A-Za-z_][\w-]*\b", "<id>"),
    (r"[-+]?\b\d+(\.\d+)?", "<n>"),
    (r"(?<!\w)_([1-5]\d\d)\b", "$1"),
    (r"\s+", " "),
)
