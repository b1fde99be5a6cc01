#!/usr/bin/env python3
"""Requests that schemathesis makes from the document that the server gives: valid ones, and ones that break it.

    schemathesis_run.py PROGRAM MODEL [OPTION...]      options of `schemathesis run`

Exit codes: 0 every answer is a documented one, 1 some is not.
"""

import pathlib
import subprocess
import sys
import tempfile

from served import Server

# Left out: "valid data is accepted". The model says which tokens and grammars it takes, and some fields exclude others.
CHECKS = ["--checks", "all", "--exclude-checks", "positive_data_acceptance"]


def main():
    program, model, *options = sys.argv[1:]
    tool = pathlib.Path(sys.executable).with_name("schemathesis")
    with Server(program, model) as server, tempfile.TemporaryDirectory() as folder:  # for its cache
        command = [tool, "run", f"{server.url}/openapi.yaml", *CHECKS, "--request-timeout", "60", *options]
        failed = subprocess.run(command, cwd=folder).returncode
        status, _, text = server.ask("GET", "/health")
        print(f"afterwards: {status} {text}")
        return 1 if failed or status != 200 else 0


if __name__ == "__main__":
    sys.exit(main())
