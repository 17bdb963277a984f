#!/bin/sh
# Runs a command with the secrets of a level in its environment. Without a command, prints lines for a shell to evaluate.
# Needs curl and jq.
#
#   export STRONGROOM_URL=https://strongroom.example STRONGROOM_TOKEN_FILE=/etc/strongroom/token
#   with-secrets nimbus/orbit/backend/live ./server
set -eu +a
: "${STRONGROOM_URL:?set STRONGROOM_URL}" "${1:?which level? organization/project/target/environment}"
# A variable of these names that the caller exported would pass secrets to curl and jq, as `set -a` would.
unset sr_special sr_functions sr_token sr_pause sr_responses sr_values sr_head sr_ended sr_message sr_lines
# Variables that a shell evaluates, resets or does not let a script set.
sr_special='BASH[A-Za-z0-9_]*|PS[0-9]|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|MAILCHECK|MAILPATH|OPTIND|PIPESTATUS|PPID|PROMPT_COMMAND|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_'
# A shell would run an invalid name as a command, and the values of some of its own variables as well.
sr_functions='
  def valid: (.key | test("\\A[A-Za-z_][A-Za-z0-9_]*\\z") and (test("\\A(?:\($special))\\z") | not)) and
    (.value | test("\\x00") | not);
  def printable: gsub("[^ -~]"; "?");
  def list: map(tojson[1:-1] | printable) | join(", ");'

# Runs in a subshell, so its variables do not reach the environment of the command.
exports() {
  sr_token=${STRONGROOM_TOKEN:-$(cat "${STRONGROOM_TOKEN_FILE:?set STRONGROOM_TOKEN_FILE or STRONGROOM_TOKEN}")} || return
  for sr_pause in 2 4 0; do
    # curl reads the token from standard input, because every process on the machine can see command lines.
    # curl tries again after 429 and 503, when the Retry-After of the response says. Its output has all responses.
    sr_responses=$(printf 'Authorization: Bearer %s\n' "$sr_token" |
      curl -sSi --fail-with-body --retry 5 --retry-max-time 180 -H @- "$STRONGROOM_URL/api/v1/$1/secrets/values") &&
      sr_ended=0 || sr_ended=$?
    # The last response is a paragraph of headers, and JSON in one line.
    sr_values=$(printf '%s\n' "$sr_responses" | tail -n 1)
    sr_head=$(printf '%s\n' "$sr_responses" | sed '$d' | tr -d '\r' |
      awk -v RS= '{ head = tolower($0) } END { print head }')
    # Every response of Strongroom has this header; a page of a proxy does not. 22: Strongroom refuses the request.
    case $sr_ended:$sr_head in 0:*x-api-version:* | 22:*x-api-version:*) break ;; esac
    sr_ended=1
    sleep "$sr_pause"
  done
  [ $sr_ended -eq 0 ] || {
    sr_message=$(show '.message | printable' 2>/dev/null) || sr_message=
    : "${sr_message:=No response of Strongroom from $STRONGROOM_URL}"
    printf '%s\n' "$sr_message" >&2
    return 1
  }
  printf '%s\n' "$sr_head" | sed -n 's/^strongroom-left-out:/Left out by the restrictions of the token:/p' >&2
  show '[to_entries[] | select(valid | not).key] | select(. != []) |
    "Left out, because a shell cannot set them: \(sort | list)"' >&2
  sr_lines=$(show 'to_entries[] | select(valid) | "export \(.key)=\(.value | @sh)"') || return
  # Exit status 126: the kernel does not start a program with variables of this size.
  (eval "$sr_lines" && exec /usr/bin/env) >/dev/null 2>&1 || [ $? -ne 126 ] || {
    show 'to_entries | map(.bytes = (.value | utf8bytelength)) | sort_by(-.bytes)[:5] |
      "Too large for the environment of a program; the largest, in bytes: \(map("\(.key) \(.bytes)") | list)"' >&2
    return 1
  }
  printf '%s\n' "$sr_lines"
}

show() {
  printf '%s\n' "$sr_values" | jq -r --arg special "$sr_special" "$sr_functions $1"
}

# A refused read ends the script here, before the command.
sr_lines=$(exports "$1")
shift
if [ $# -eq 0 ]; then
  printf '%s\n' "$sr_lines"
  exit
fi
unset STRONGROOM_TOKEN
eval "$sr_lines" 2>/dev/null
exec "$@"
