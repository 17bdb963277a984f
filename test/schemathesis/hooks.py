"""Hooks of `npm run schemathesis`: what requests act on is there, what is no failure is said, all is counted."""

import atexit
import itertools
import json
import os
import re
import zlib
from collections import Counter

import requests
import schemathesis
from schemathesis.core import NotSet

# The server that creates what an operation acts on; a request without a token does not get that far.
STAGE = os.environ.get("STAGE")
# Of how many cases at the limits of schemas one is sent.
SHARE = int(os.environ["SHARE"])

# What no schema says of a member alone, by what the answer `validation_failed` says of it.
RULES = {
    "a member goes with another, or without it": re.compile(
        r"^Only allowed with |^Send exactly one of |^Required|^Not allowed with (?:level|scope) "
        r"|^\* cannot be combined |^The \w+ already holds the key|^Already used for a key |of the current key$"
        r"|^Only with a target|^Expected `guest` with a place$|^The path has no (?:target|environment): "
        r"|^Expected the project of the path$|^The preset needs |^Expected a target, an environment or except_status$"
    ),
    "a moment, an address or an encoding is narrower than its pattern": re.compile(
        r"^NUL characters are not allowed|^Expected an e-mail address|^Expected base64 of |^This word is reserved"
        r"|^Expected a time (?:in the future|before )|^At most \d+ days before |^Lies in the future|^Expected an RFC 3339 time"
        r"|^Larger than 1 MiB when sealed|^must be a text of .* without control and direction characters|content has to be encrypted"
        r"|^Expected names of 1 to 128 characters, without control characters$|^Expected a key of the kind "
        r"|^Expected an https URL without "
        r"|^Expected an exact value\. Only `ref` |^Not a claim of a rule: |^Expected at most \d+ KiB as JSON$"
    ),
    "a format does not hold each name and value, and a change names each once": re.compile(
        r"cannot hold this name with this value|^An alias in the document refers|^(?:Also|Not) in `set`|^A name has at most "
        r"|^More than 262,144 characters|^The document would have more than |cannot hold these changes together"
        r"|^The document is too large to try |^A value of an `\.env` document is a text$"
    ),
    "a list names each thing once, and what is there; and it ends": re.compile(
        r"^Contains an? \w+ twice|^There is no such (?:project|target|environment)$|^No such payment method in |^Limit of \d+ payment methods "
    ),
}

TOO_LONG = re.compile(r"^Expected string length less or equal to \d+")

LEVEL = {"project", "target", "environment"}

BOOLEANS = ("decrypt", "dry_run", "force", "merge", "raw", "values")
WORDS_OF_BOOLEANS = {"true", "false", "1", "0"}

stage = requests.Session()
settings = {}
numbers = itertools.count()
counts = Counter()
dropped = Counter()


def operation_of(case):
    return case.operation.definition.raw["operationId"]


def setting_of(operation):
    if operation not in settings:
        answer = stage.post(f"{STAGE}/{operation}", timeout=60)
        answer.raise_for_status()
        settings[operation] = answer.json()
    return settings[operation]


def chosen(value, one_of):
    """Whether this is one of so many, for the same seed always the same."""
    return zlib.crc32(repr(value).encode()) % one_of == 0


@schemathesis.hook
def filter_case(context, case):
    """Takes its share of the cases at the limits of schemas."""
    if SHARE == 1 or case.meta is None or case.meta.phase.name.value != "coverage":
        return True
    # Of no token, which is another in each run, and of no address in memory.
    headers = {name: value for name, value in case.headers.items() if name.lower() != "authorization"}
    body = None if isinstance(case.body, NotSet) else case.body
    return chosen((case.operation.label, case.path_parameters, case.query, headers, body), SHARE)


@schemathesis.hook
def before_call(context, case, kwargs):
    """Puts what is there into the place of a well-formed name that was made up; what is wrong on purpose stays."""
    meta = case._meta
    if STAGE is None or meta is None:
        return
    phase = meta.phase.name.value
    setting = setting_of(operation_of(case))
    wrong = {meta.phase.data.parameter} | {mutation.parameter for mutation in meta.phase.data.mutations}
    is_wrong = {location.name.lower(): info.mode.is_negative for location, info in meta.components.items()}
    # One that another answer named.
    linked = case._override.path_parameters if phase == "stateful" else {}
    if not is_wrong.get("path") or wrong != {None}:
        # What is well formed and is not there has its share. The token is of one organization.
        keeps = phase == "fuzzing" and chosen(case.path_parameters, 8)
        for name in case.path_parameters.keys() & setting["ids"].keys() - wrong:
            if name == "organization" or not (keeps or name in linked):
                case.path_parameters[name] = setting["ids"][name]
    if meta.generation.mode.is_positive and isinstance(case.body, dict):
        if phase == "examples" and "body" in setting and case.media_type != "application/merge-patch+json":
            case.body = dict(setting["body"])
        else:
            case.body.update({name: setting["ids"][name] for name in LEVEL & case.body.keys()})
    if meta.generation.mode.is_positive and phase == "examples" and "query" in setting:
        case.query = dict(setting["query"])
    # A key that came before is answered before the operation is reached; one of few characters is left now and then.
    key = case.headers.get("Idempotency-Key")
    number = next(numbers)
    if key is not None and not is_wrong.get("header") and (len(key) >= 8 or number % 8 > 0):
        case.headers["Idempotency-Key"] = f"{number:08}{key[8:]}"
    # It is as right, or as wrong, as it was made.
    case._record_starting_state()


@schemathesis.hook
def after_call(context, case, response):
    """Counts; and what changed something may have taken away what the next one acts on."""
    method = response.request.method
    own = method.lower() == case.operation.method.lower()
    phase = case._meta.phase.name.value if own and case._meta else "other methods"
    counts[phase, operation_of(case), response.status_code] += 1
    if response.status_code < 300 and method not in ("GET", "HEAD", "OPTIONS"):
        settings.clear()


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """Leaves out what is none by decision, and counts that too."""
    why = reason(type(failure).__name__, case, response)
    if why is not None:
        dropped[why] += 1
    return why is None


def reason(failure, case, response):
    """Why it is none; nothing when it is one."""
    raw = case.operation.definition.raw
    if response.status_code == 405 and words_of_paths(case) & set(case.path_parameters.values()):
        return "a word of another path, which no slug is, leads to that path"
    if failure == "RejectedPositiveData":
        answer = response.json()
        if answer["error"] == "validation_failed":
            errors = {name: said for name, said in answer["errors"].items() if not is_no_etag(name, case, response)}
            if not errors:
                return "an ETag was made that does not match its pattern"
            messages = [message for messages in errors.values() for message in messages]
            if has_double_units(case.body):
                messages = [message for message in messages if not TOO_LONG.search(message)]
            return rule_of(messages) if messages else "a length counts UTF-16 units"
        if f"`{answer['error']}`" in description_of(case):
            return "the stored data does not allow it: the description of the operation lists the code"
        if answer["error"] == "idempotency_key_reused":
            return "a key of few characters came with another request before"
        refused = operation_of(case) == "revokeToken" and answer["error"] == "invalid_request"
        if refused and repeats(response.request.body):
            return "a form has each parameter once (RFC 6749, 3.1)"
        if refused and answer["message"] == "token contains invalid characters.":
            return "a moment, an address or an encoding is narrower than its pattern"
    if failure == "AcceptedNegativeData":
        if response.status_code == 413:
            return "a body above the limit is refused before its members are read"
        if needs_no_body(case) and (case.body is None or isinstance(case.body, NotSet)):
            return "a missing body, or a JSON null, counts as one without fields where no field is required"
        if any(str(case.query.get(name)).lower() in WORDS_OF_BOOLEANS for name in BOOLEANS):
            return "a boolean of a query is also 1 or 0, in any case"
        if operation_of(case) == "revokeToken" and response.status_code == 200:
            return "a token that there is not is revoked (RFC 7009, 2.2)"
    return None


def needs_no_body(case):
    """Whether no field of the body is required, so that the service accepts requests without a body."""
    media = case.operation.definition.raw.get("requestBody", {}).get("content", {})
    for value in media.values():
        schema = value["schema"]
        if "$ref" in schema:
            schema = case.operation.schema.raw_schema["components"]["schemas"][schema["$ref"].split("/")[-1]]
        return not schema.get("required")
    return False


def is_no_etag(name, case, response):
    """Whether what was sent in a header of a precondition is none by the document, however it was meant."""
    if name not in ("if-match", "if-none-match"):
        return False
    sent = response.request.headers.get(name, "")
    pattern = case.operation.schema.raw_schema["components"]["parameters"]["if-match"]["schema"]["pattern"]
    return re.fullmatch(pattern, sent.decode("latin-1") if isinstance(sent, bytes) else sent) is None


def has_double_units(body):
    """Whether a text of the body has characters that are two units of UTF-16."""
    return any(character > "\uffff" for character in json.dumps(body, ensure_ascii=False, default=str))


def words_of_paths(case):
    return {word for path in case.operation.schema.raw_schema["paths"] for word in path.split("/") if "{" not in word}


def description_of(case):
    """The description of the operation. That of a duplicate names the operation whose errors it has, too."""
    description = case.operation.definition.raw["description"]
    original = re.fullmatch(r"A duplicate of `(\w+)`\.", description)
    if original is None:
        return description
    paths = case.operation.schema.raw_schema["paths"].values()
    operations = [one for path in paths for method, one in path.items() if method != "parameters"]
    return next(one["description"] for one in operations if one["operationId"] == original[1])


def rule_of(messages):
    """The rule of the first message, if each of them has one."""
    rules = [next((why for why, rule in RULES.items() if rule.search(message)), None) for message in messages]
    return None if None in rules else rules[0]


def repeats(form):
    names = [pair.split("=")[0] for pair in (form.decode() if isinstance(form, bytes) else form).split("&")]
    return len(names) > len(set(names))


@atexit.register
def tell():
    with open(os.environ["COUNTS"], "w") as file:
        told = {"counts": [[*key, many] for key, many in counts.items()], "dropped": [*dropped.items()]}
        json.dump(told, file)
