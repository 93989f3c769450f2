"""Servers that hold corpora: an S3 service in a process of its own, and a plain one that can misbehave."""

import http.client
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

KEYS = {"AWS_ACCESS_KEY_ID": "test-key-id", "AWS_SECRET_ACCESS_KEY": "test-secret", "AWS_REGION": "us-east-1"}
CREDENTIAL = f"{KEYS['AWS_ACCESS_KEY_ID']}/20260101/us-east-1/s3/aws4_request"
ELSEWHERE = {
    "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3",
    "AWS_ALLOW_HTTP", "AWS_SKIP_SIGNATURE", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY",
    "http_proxy", "https_proxy", "all_proxy",
}  # fmt: skip


def environment(endpoint):
    """Variables of a process that uses the store at an address, and no other."""
    kept = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    return {**kept, **KEYS, "AWS_ENDPOINT_URL": endpoint}


def use(monkeypatch, endpoint):
    """Let this process, and those that it starts, use the store at an address."""
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**KEYS, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)


def free_port(host="127.0.0.1"):
    with socket.socket() as free:
        free.bind((host, 0))
        return free.getsockname()[1]


def wait_for(host, port, process, seconds=30):
    """Wait until a process listens."""
    until = time.monotonic() + seconds
    while True:
        assert process.poll() is None, f"the process for {host}:{port} has ended with {process.returncode}"
        try:
            socket.create_connection((host, port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nothing listens on {host}:{port}"
            time.sleep(0.05)


class S3:
    """A running S3 service, asked without any of the code under test."""

    def __init__(self, host, port):
        self.address = (host, port)
        self.endpoint = f"http://{host}:{port}"

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection(*self.address, timeout=20)
        try:
            # The service asks who it is, and does not check the signature.
            headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}, Signature=0"}
            connection.request(method, quote(path), body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def make_bucket(self, name):
        assert self.request("PUT", f"/{name}")[0] == 200

    def get(self, bucket, key):
        status, content = self.request("GET", f"/{bucket}/{key}")
        assert status == 200
        return content

    def put(self, bucket, key, content):
        assert self.request("PUT", f"/{bucket}/{key}", content)[0] == 200

    def delete(self, bucket, key):
        assert self.request("DELETE", f"/{bucket}/{key}")[0] == 204

    def keys(self, bucket):
        status, content = self.request("GET", f"/{bucket}")
        assert status == 200
        assert b"<IsTruncated>false</IsTruncated>" in content
        return set(re.findall(r"<Key>([^<]*)</Key>", content.decode()))


@contextmanager
def s3_service(host="127.0.0.1"):
    """Run an S3 service that keeps its objects in memory."""
    port = free_port(host)
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(host, port, process)
        yield S3(host, port)
    finally:
        process.kill()
        process.wait(20)


class Files:
    """What a `file_server` serves and how it misbehaves.

    ``busy`` answers 503 to so many requests of each file, ``cut`` breaks so many off in the middle, and
    ``refuse`` answers 403 to all.
    """

    def __init__(self, root):
        self.root = root
        self.busy = self.cut = 0
        self.refuse = False
        self.requests = Counter()


@contextmanager
def file_server(root):
    """Serve the files below a directory as objects; yields `Files` with the server's address as ``endpoint``."""
    files = Files(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            name = unquote(self.path.partition("?")[0]).strip("/")
            files.requests[name] += 1
            if files.refuse:
                return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            if files.requests[name] <= files.busy:
                return self.answer(503, b"<Error><Code>SlowDown</Code></Error>")
            if not (files.root / name).is_file():
                return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            content = (files.root / name).read_bytes()
            begin = int(re.fullmatch(r"bytes=(\d+)-\d*", self.headers.get("Range", "bytes=0-"))[1])
            return self.answer(206 if begin else 200, content, begin, files.requests[name] <= files.cut)

        def answer(self, status, content, begin=0, cut=False):
            self.send_response(status)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            content = content[begin:]
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", formatdate(0, usegmt=True))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = cut

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    files.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield files
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
