#!/usr/bin/env python3
"""As much of W&B's server as its client needs to upload a run: what the client sends is kept as JSON.

wandb_server.py FILE PORT_FILE      until its standard input ends; FILE: {"runs": [...], "history": [...], "summary": {}, "done": bool}
"""

import gzip
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

got = {"queries": [], "runs": [], "history": [], "summary": {}, "done": False, "exit": None}
lock = threading.Lock()


def answer(query, variables):
    if "upsertBucket" in query:
        got["runs"].append(variables)
        name, project = variables.get("name") or "run", variables.get("project") or "p"
        bucket = {
            "id": "1",
            "name": name,
            "displayName": variables.get("displayName") or name,
            "config": variables.get("config"),
            "historyLineCount": 0,
            "project": {"id": "2", "name": project, "entity": {"id": "3", "name": "someone"}},
        }
        return {"upsertBucket": {"bucket": bucket, "inserted": True}}
    if "createRunFiles" in query:
        return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
    viewer = {"id": "4", "entity": "someone", "username": "someone", "flags": "{}", "teams": {"edges": []}}
    return {
        "viewer": viewer,
        "serverInfo": {"features": [], "cliVersionInfo": {}, "latestLocalVersionInfo": None},
        "model": None,
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def do_POST(self):
        data = self.body()
        with lock:
            if self.path.endswith("/graphql"):
                request = json.loads(data)
                got["queries"].append(request["query"].split("{")[0].strip())
                return self.reply({"data": answer(request["query"], request.get("variables") or {})})
            if self.path.endswith("/file_stream"):
                request = json.loads(data)
                for name, part in (request.get("files") or {}).items():
                    if name.endswith("history.jsonl"):
                        got["history"] += [json.loads(line) for line in part["content"]]
                    if name.endswith("summary.json"):
                        got["summary"] = json.loads(part["content"][-1])
                got["done"] |= bool(request.get("complete"))
                got["exit"] = request.get("exitcode", got["exit"])
            self.reply({})

    def do_PUT(self):
        self.body()
        self.reply({})

    def do_GET(self):
        self.reply({})

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with open(sys.argv[2], "w") as f:
    f.write(str(server.server_port))
sys.stdin.read()
with open(sys.argv[1], "w") as f:
    json.dump(got, f)
