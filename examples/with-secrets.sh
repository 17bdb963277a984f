#!/bin/sh
# Runs a command with the secrets of a level in its environment. Without a command, prints lines for a shell to evaluate.
# Needs curl and jq.
#
#   export STRONGROOM_URL=https://strongroom.example STRONGROOM_TOKEN_FILE=/etc/strongroom/token
#   with-secrets nimbus/orbit/backend/live ./server
set -eu
: "${STRONGROOM_URL:?set STRONGROOM_URL}" "${1:?which level? organization/project/target/environment}"
# Variables that a shell evaluates, resets or does not let a script set.
special='BASH[A-Za-z0-9_]*|PS[0-9]|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|MAILCHECK|MAILPATH|OPTIND|PIPESTATUS|PPID|PROMPT_COMMAND|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_'
# A shell would run an invalid name as a command, and the values of some of its own variables as well.
functions='def valid: (.key | test("\\A[A-Za-z_][A-Za-z0-9_]*\\z") and (test("\\A(?:\($special))\\z") | not)) and
    (.value | test("\\x00") | not);
  def list: map(tojson[1:-1]) | join(", ");'

# Runs in a subshell, so its variables do not reach the environment of the command.
exports() {
  token=${STRONGROOM_TOKEN:-$(cat "${STRONGROOM_TOKEN_FILE:?set STRONGROOM_TOKEN_FILE or STRONGROOM_TOKEN}")} || return
  for pause in 2 4 0; do
    # curl reads the token from standard input, because every process on the machine can see command lines.
    # curl tries again after 429 and 503, when the Retry-After of the response says. Its output has all responses.
    responses=$(printf 'Authorization: Bearer %s\n' "$token" |
      curl -sSi --fail-with-body --retry 5 --retry-max-time 180 -H @- "$STRONGROOM_URL/api/v1/$1/secrets/values") &&
      ended=0 || ended=$?
    # The last response is a paragraph of headers, and JSON in one line.
    values=$(printf '%s\n' "$responses" | tail -n 1)
    head=$(printf '%s\n' "$responses" | sed '$d' | tr -d '\r' | awk -v RS= '{ head = tolower($0) } END { print head }')
    # Every response of Strongroom has this header; a page of a proxy does not. 22: Strongroom refuses the request.
    case $ended:$head in 0:*x-api-version:* | 22:*x-api-version:*) break ;; esac
    ended=1
    sleep "$pause"
  done
  [ $ended -eq 0 ] || {
    message=$(show .message 2>/dev/null) || message="No response of Strongroom from $STRONGROOM_URL"
    printf '%s\n' "$message" >&2
    return 1
  }
  printf '%s\n' "$head" | sed -n 's/^strongroom-left-out:/Left out by the restrictions of the token:/p' >&2
  show '[to_entries[] | select(valid | not).key] | select(. != []) |
    "Left out, because a shell cannot set them: \(sort | list)"' >&2
  lines=$(show 'to_entries[] | select(valid) | "export \(.key)=\(.value | @sh)"') || return
  # Exit status 126: the kernel does not start a program with variables of this size.
  (eval "$lines" && exec /usr/bin/env) >/dev/null 2>&1 || [ $? -ne 126 ] || {
    show 'to_entries | map(.bytes = (.value | utf8bytelength)) | sort_by(-.bytes)[:5] |
      "Too large for the environment of a program; the largest, in bytes: \(map("\(.key) \(.bytes)") | list)"' >&2
    return 1
  }
  printf '%s\n' "$lines"
}

show() {
  printf '%s\n' "$values" | jq -r --arg special "$special" "$functions $1"
}

# A refused read ends the script here, before the command.
unset lines
lines=$(exports "$1")
shift
if [ $# -eq 0 ]; then
  printf '%s\n' "$lines"
  exit
fi
unset STRONGROOM_TOKEN
eval "$lines"
exec "$@"
