"""A web service that enqueues and a worker that does the work: two programs that share a queue.

    python examples/web.py 8000                     # the service, any number of threads
    oxcart work examples.web:signups                # the worker, in another terminal
    curl -d '{"email": "ada@example.com"}' localhost:8000/signups
    curl localhost:8000/signups/<id>

The service has no event loop, so it uses ``oxcart.sync``. The same queue object serves Flask, Django and
gunicorn's forked workers.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from oxcart.errors import ValidationError
from oxcart.sync import Queue

signups = Queue("signups", attempts=5)


@signups.job
def sign_up(email: str, plan: str = "free") -> str:
    """Creates an account; runs in the worker, in a thread, because it is a plain function."""
    return f"{email} is on the {plan} plan"


class Service(BaseHTTPRequestHandler):
    """POST /signups enqueues, GET /signups/<id> returns its state."""

    def do_POST(self) -> None:
        """Answers 202 with the job's id: accepted, not yet done."""
        try:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            job = sign_up.enqueue(**body)
        except (ValueError, TypeError, ValidationError) as error:
            return self._answer(400, {"error": str(error)})
        return self._answer(202, {"id": job.id})

    def do_GET(self) -> None:
        """Answers with the job's state, and its result once it has one."""
        job = signups.jobs.get(self.path.rpartition("/")[2])
        if job is None:
            return self._answer(404, {"error": "no such signup"})
        return self._answer(200, {"state": signups.jobs.state(job.id), "result": job.return_value})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Service) as server:
        print(f"listening on port {server.server_port}", flush=True)
        server.serve_forever()
