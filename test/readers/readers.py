# Reads a JSON list of .env documents from standard input. Prints what python-dotenv makes of each, or null.
import io
import json
import logging
import sys

import dotenv

logging.disable()
documents = json.load(sys.stdin)
# A file is opened in text mode, which makes line feeds of all line ends.
read = [dotenv.dotenv_values(stream=io.StringIO(document, newline=None)) for document in documents]
json.dump({'python-dotenv': read}, sys.stdout)
