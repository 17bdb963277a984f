# Reads or writes one document. The key string, the data key and the plaintext stay in this process.
#   read orbit/backend/live             prints the document
#   write orbit/backend/live < .env     stores standard input
# Environment: STRONGROOM_URL, STRONGROOM_TOKEN, STRONGROOM_ORGANIZATION; for a client-managed project also STRONGROOM_KEY.
import base64
import hashlib
import json
import os
import sys
import urllib.error
import urllib.request
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

base = f"{os.environ['STRONGROOM_URL']}/api/v1/{os.environ['STRONGROOM_ORGANIZATION']}/"
own_key = os.environ.get("STRONGROOM_KEY")
action, path = sys.argv[1:3]
names = dict(zip(("project", "target", "environment"), path.split("/")))
level = list(names)[-1]


def call(path, headers={}, body=None):
    request = urllib.request.Request(base + path, json.dumps(body).encode() if body else None, headers)
    request.add_header("Authorization", "Bearer " + os.environ["STRONGROOM_TOKEN"])
    request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        sys.exit(f"{error.code} {error.read().decode()}")


key = call(names["project"] + "/encryption-key")["attributes"]
key_bytes = (own_key or key.get("key", "")).encode()
if not key_bytes:
    sys.exit("The project is client-managed: set STRONGROOM_KEY")
if own_key and len(key_bytes) == 32:
    sys.exit("The proof of a key string of 32 bytes is its data key: use another length")
if key["key_check_iterations"] < 600_000:
    sys.exit("The server names too few iterations")


def derive(password):
    return hashlib.pbkdf2_hmac("sha256", password, base64.b64decode(key["key_check_salt"]), key["key_check_iterations"], 32)


cipher = AESGCM(derive(key_bytes))

# Also decrypts before a write: a wrong key fails here, before anything is stored under it.
stored = call(path + "/secrets")["attributes"]["levels"].get(level)
blob = base64.b64decode(stored["content"]) if stored else None
document = cipher.decrypt(blob[:12], blob[12:], None) if stored else b""
if action == "read":
    sys.stdout.buffer.write(document)
elif action == "write":
    iv = os.urandom(12)
    content = base64.b64encode(iv + cipher.encrypt(iv, sys.stdin.buffer.read(), None)).decode()
    proof = {"key_proof": base64.b64encode(derive(key_bytes[:32].ljust(32, b"0"))).decode()} if own_key else {}
    expected = {"If-Match": stored["etag"]} if stored else {"If-None-Match": "*"}
    print("version", call("secrets/store", expected, {**names, "content": content, **proof})["version"])
else:
    sys.exit("Say read or write")
