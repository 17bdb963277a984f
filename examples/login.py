# Prints who is signed in; first signs a person in with their browser if necessary. Prints no token: tokens are in a
# file that only its owner can read.
#   login             signs in if necessary
#   login --logout    revokes the tokens and removes the file
# Environment: STRONGROOM_URL; STRONGROOM_CLIENT (dotenv-cli), STRONGROOM_LOGIN (the file: ~/.strongroom-login.json) and
# STRONGROOM_WAIT (seconds to wait for the browser: 300) have these defaults.
import atexit
import base64
import hashlib
import http.server
import json
import os
import queue
import secrets
import signal
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request

url = os.environ.get("STRONGROOM_URL", "").rstrip("/")
client = os.environ.get("STRONGROOM_CLIENT", "dotenv-cli")
file = os.environ.get("STRONGROOM_LOGIN", os.path.expanduser("~/.strongroom-login.json"))
wait = float(os.environ.get("STRONGROOM_WAIT", "300"))


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


# A redirect would send tokens to another server.
opener = urllib.request.build_opener(NoRedirect)


def send(address, form=None, token=None):
    """The status and the JSON of a response, errors included."""
    request = urllib.request.Request(address, urllib.parse.urlencode(form).encode() if form else None)
    if token:
        request.add_header("Authorization", "Bearer " + token)
    try:
        try:
            response = opener.open(request, timeout=30)
        except urllib.error.HTTPError as error:
            response = error
        with response:
            return response.status, json.load(response)
    except (OSError, ValueError) as error:
        sys.exit(f"login: {address}: {error}")



def refuse(status, answer):
    sys.exit(f"login: {status} {answer['error']}: {answer['message']}")


def discover():
    parts = urllib.parse.urlsplit(url)
    # Only a service on this machine may use plain http.
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        sys.exit("login: STRONGROOM_URL has to start with https://")
    status, found = send(parts._replace(path="/.well-known/oauth-authorization-server" + parts.path).geturl())
    if status != 200 or found["issuer"] != url:
        sys.exit(f"login: STRONGROOM_URL is not the address that the service goes by: {found.get('issuer')}")
    return found


def sign_in():
    answers = queue.Queue()

    class Callback(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, query = self.path.partition("?")
            self.send_response(200 if path == "/callback" else 404)
            self.send_header("Referrer-Policy", "no-referrer")
            self.end_headers()
            if path == "/callback":
                self.wfile.write(b"Close this page and go back to the terminal.")
                answers.put(urllib.parse.parse_qsl(query))

        def log_message(self, *_):
            pass  # It would print the code.

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Callback)
    threading.Thread(target=listener.serve_forever, daemon=True).start()
    redirect_uri = f"http://127.0.0.1:{listener.server_port}/callback"
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    state = secrets.token_urlsafe(32)
    query = {"response_type": "code", "client_id": client, "redirect_uri": redirect_uri, "state": state,
             "code_challenge": challenge, "code_challenge_method": "S256"}
    print(f"Open this address in your browser:\n{server['authorization_endpoint']}?{urllib.parse.urlencode(query)}", flush=True)
    try:
        pairs = answers.get(timeout=wait)
    except queue.Empty:
        sys.exit(f"login: nobody came back within {wait:g} seconds")
    listener.shutdown()

    # Before anything else is read, an error included.
    answer = dict(pairs)
    if len(answer) != len(pairs):
        sys.exit("login: the answer repeats a parameter")
    if answer.get("state") != state:
        sys.exit("login: the answer is not to this request: state is not the same")
    if answer.get("iss") != server["issuer"]:
        sys.exit("login: the answer is another service's: iss is not the same")
    if "code" not in answer:
        sys.exit(f"login: {answer.get('error')}: {answer.get('error_description')}")
    status, tokens = send(server["token_endpoint"], {
        "grant_type": "authorization_code", "code": answer["code"], "code_verifier": verifier, "redirect_uri": redirect_uri, "client_id": client
    })
    return write(tokens) if status == 200 else refuse(status, tokens)


def refresh(login):
    status, answer = send(server["token_endpoint"], {"grant_type": "refresh_token", "refresh_token": login["refresh_token"], "client_id": client})
    if status == 200:
        return write(answer)
    # Expired or revoked. Other errors may be temporary, so the tokens are kept.
    return None if answer["error"] == "invalid_grant" else refuse(status, answer)


def who_is(login):
    """GET /api/v1/user, with new tokens if the old ones are not valid; None when a sign-in is necessary."""
    status, answer = send(server["issuer"] + "/api/v1/user", token=login["access_token"])
    if status == 401:
        login = refresh(login)
        if login is None:
            return None
        status, answer = send(server["issuer"] + "/api/v1/user", token=login["access_token"])
    return answer if status == 200 else refuse(status, answer)


def read():
    try:
        with open(file) as stored:
            return json.load(stored)
    except FileNotFoundError:
        return None


def write(tokens):
    """Stores the newest tokens. A rename replaces the file, so that it is never half written."""
    login = {"issuer": server["issuer"], "client_id": client, "access_token": tokens["access_token"], "refresh_token": tokens["refresh_token"]}
    remove(file + ".new")
    with open(os.open(file + ".new", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as stored:
        json.dump(login, stored)
    os.replace(file + ".new", file)
    return login


def remove(path):
    try:
        os.remove(path)
    except FileNotFoundError:
        pass


# One process at a time: two refreshes with one token end the login.
try:
    os.close(os.open(file + ".lock", os.O_CREAT | os.O_EXCL, 0o600))
except FileExistsError:
    sys.exit(f"login: another one is at it; if not, remove {file}.lock")
atexit.register(remove, file + ".lock")
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit(1))

server = discover()
held = read()
# Tokens go to the service that issued them, and to no other.
if held and (held["issuer"], held["client_id"]) != (server["issuer"], client):
    sys.exit(f"login: {file} is of {held['client_id']} at {held['issuer']}")
if sys.argv[1:] == ["--logout"]:
    if held:
        status, answer = send(server["revocation_endpoint"], {"token": held["refresh_token"], "client_id": client})
        if status != 200:
            refuse(status, answer)
    remove(file)
    print("Nobody is signed in")
else:
    user = (held and who_is(held)) or who_is(sign_in())
    if user is None:
        sys.exit("login: the new tokens are not accepted")
    print(f"Signed in as {user['data']['attributes']['name']} <{user['data']['attributes']['email']}>")
    for organization in user["included"]:
        print(f"  {organization['attributes']['name']}: {organization['attributes']['role']}")
