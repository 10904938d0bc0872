"""Types of the site's answers; docs/rest-api.md says what the fields mean.

An answer is the JSON as the site sent it: with `fields` only those are there, and a newer site may
send more. Times are ISO 8601 in UTC.
"""

from virtualflow.answers.cluster import *  # noqa: F403
from virtualflow.answers.jobs import *  # noqa: F403
from virtualflow.answers.people import *  # noqa: F403
