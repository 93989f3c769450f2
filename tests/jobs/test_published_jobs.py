"""Jobs that are submitted and looked after by machines that see the scheduler and an object store alone."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
from clusters import cluster_of_processes, scheduler, wait_until
from deployment import planted, same_models
from stores import KEYS
from test_jobs import COMMAND, IDLE, SLOW

from distmom.errors import StoreError, UsageError
from distmom.jobs import open_job, submit

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

#: hides a directory from the program that follows
BLIND = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']


def can_hide(folder):
    """Whether this user may mount a file system that other processes do not see."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*BLIND, str(folder), "true"], capture_output=True, check=False).returncode == 0


class Site:
    """A cluster whose folder clients do not see, and a bucket.

    Parameters
    ----------
    folder : Path
        With the corpus, seen by the scheduler and the workers.
    address, bucket : str
    model : tuple of str
        Options of the fit.
    """

    def __init__(self, folder, address, bucket, model):
        self.folder, self.address, self.bucket, self.model = folder, address, bucket, model
        self.jobs = f"s3://{bucket}/jobs"

    def submit(self, name, **options):
        fit = ["fit", "corpus", name, *self.model]
        return submit(fit, scheduler=self.address, folder=self.folder, url=f"{self.jobs}/{name}", **options)

    def laptop(self, tmp_path, *arguments, **options):
        """Run a command where the folder of the cluster is empty; return its process."""
        environment = {**os.environ, "DISTMOM_JOBS": self.jobs, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(
            [*BLIND, str(self.folder), *COMMAND, *arguments], env=environment, cwd=tmp_path,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options,
        )  # fmt: skip

    def said(self, tmp_path, *arguments, code=0):
        """Run a command as `laptop` to its end; return what it has printed."""
        with self.laptop(tmp_path, *arguments) as process:
            printed, _ = process.communicate(timeout=120)
        assert process.returncode == code, printed
        return printed


@pytest.fixture(scope="module")
def site(tmp_path_factory, s3_server):
    folder = tmp_path_factory.mktemp("site")
    model = planted(folder)
    (folder / "slow.py").write_text(SLOW)
    s3_server.make_bucket("published")
    keys = {**KEYS, "AWS_ENDPOINT_URL": s3_server.endpoint}
    with cluster_of_processes(folder, 2, preload=folder / "slow.py", **keys) as (address, _):
        yield Site(folder, address, "published", model)


def in_the_middle(job):
    """Wait until a pass is committed, and the job is published as running; return its state."""
    wait_until(lambda: any(job.directory.glob("passes/sketch-*/DONE.json")))
    return wait_until(lambda: (found := job.status())["state"] != "queued" and found)


def test_a_laptop_needs_the_scheduler_and_the_bucket_alone(site, s3, tmp_path):
    if not can_hide(site.folder):
        pytest.skip("needs the right to mount, to hide the files of the cluster from its clients")
    listed = subprocess.run(
        [*BLIND, str(site.folder), "ls", str(site.folder)], capture_output=True, text=True, check=True
    )
    assert listed.stdout == ""
    command = ("submit", "fit", "corpus", "m", *site.model, "--scheduler", site.address)
    shown = json.loads(site.said(tmp_path, *command, "--folder", str(site.folder), "--json"))
    name = shown["id"]
    assert shown["url"] == f"{site.jobs}/{name}"
    # Another machine follows the job from its beginning to its end.
    with site.laptop(tmp_path, "jobs", "logs", name, "--follow") as following:
        wait_until(lambda: site_state(site, tmp_path, name) == "running", 90)
        assert name in site.said(tmp_path, "jobs", "list")
        site.said(tmp_path, "jobs", "wait", name)
        printed, _ = following.communicate(timeout=30)
    assert following.returncode == 0
    assert printed.startswith(f"fitting on 2 threads of {site.address}")
    assert printed == (site.folder / "distmom-jobs" / name / "out.txt").read_text()
    assert site_state(site, tmp_path, name) == "done"
    assert same_models(site.folder / "m", site.folder / "local")
    assert not list(tmp_path.iterdir())


def site_state(site, tmp_path, name):
    return json.loads(site.said(tmp_path, "jobs", "status", name, "--json"))["state"]


def test_a_published_job_is_cancelled_and_resumed_with_the_same_bits(site, s3):
    job = site.submit("cancelled")
    in_the_middle(job)
    assert job.cancel()["state"] == "cancelled"
    assert job.wait(1) == 130
    # What is said of the end is published before the end.
    assert "to resume: distmom resume" in list(job.logs(follow=True))[-1]
    assert not (site.folder / "cancelled").exists()
    assert job.resume().wait(300) == 0, "\n".join(job.logs())
    assert open_job(job.record.url).status()["epoch"] == 2
    assert same_models(site.folder / "cancelled", site.folder / "local")


def test_a_driver_that_cannot_be_reached_ends_when_it_reads_the_request(site, s3):
    job = site.submit("unreached")
    in_the_middle(job)
    job.place.request_cancel()
    assert job.wait(120) == 130
    assert job.status()["state"] == "cancelled"


def test_a_published_job_whose_driver_was_killed_is_lost_and_resumed(site, s3):
    job = site.submit("killed")
    pid = in_the_middle(job)["pid"]
    # On this host the process is known to be gone; elsewhere, the beat stands still.
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: job.status()["state"] == "lost", 10)
    assert job.wait(1) == 5
    assert job.status()["resume"] == f"distmom jobs resume {site.jobs}/killed"
    assert job.resume().wait(300) == 0, "\n".join(job.logs())
    assert same_models(site.folder / "killed", site.folder / "local")


def test_a_published_job_whose_driver_and_scheduler_were_killed_before_it_began_is_lost(site, s3, tmp_path):
    (tmp_path / "idle.py").write_text(IDLE)
    url, keys = f"{site.jobs}/idle", {**KEYS, "AWS_ENDPOINT_URL": s3.endpoint}
    with scheduler(tmp_path, "--preload", str(tmp_path / "idle.py"), **keys) as (address, process):
        fit = ["fit", str(site.folder / "corpus"), "m", *site.model]
        job = submit(fit, scheduler=address, folder=tmp_path, url=url)
        pid = wait_until(lambda: job.status().get("pid"))
        assert job.status()["state"] == "queued"
        process.kill()
        process.wait()
        os.kill(pid, signal.SIGKILL)
    assert job.wait(120) == 5
    status = job.status()
    assert (status["state"], status["epoch"], status["pid"]) == ("lost", 0, pid)
    assert job.resume(site.address).wait(300) == 0, "\n".join(job.logs())
    assert same_models(tmp_path / "m", site.folder / "local")


def test_a_job_whose_end_was_not_published_is_found_done_by_its_driver(site, s3):
    job = site.submit("unsaid")
    assert job.wait(300) == 0

    def is_lost():
        # The driver may still be running, and what it has left is published once more when it has ended.
        s3.delete(site.bucket, "jobs/unsaid/epochs/0001.end.json")
        return job.status()["state"] == "lost"

    wait_until(is_lost, 10)
    assert job.resume().status()["state"] == "done"
    assert job.status()["epoch"] == 1


def test_a_name_belongs_to_one_job(site, s3):
    job = site.submit("named")
    before = s3.get(site.bucket, "jobs/named/job.json")
    with pytest.raises(UsageError, match="exists and is another job"):
        site.submit("named")
    assert s3.get(site.bucket, "jobs/named/job.json") == before
    assert job.wait(300) == 0
    # A directory that cannot be the job's leaves no record behind.
    with pytest.raises(UsageError, match="is the directory of another job"):
        site.submit("other", directory=job.directory)
    assert "jobs/other/job.json" not in s3.keys(site.bucket)


@pytest.mark.parametrize("driver", ["scheduler", "worker", "slurm"])
def test_a_folder_that_the_cluster_lacks_is_refused_and_not_created(site, s3, driver):
    missing = site.folder / "dta"
    with pytest.raises(UsageError, match=r"dta: host .* has no such directory; specify one with --folder"):
        submit(
            ["fit", "corpus", "m"], scheduler=site.address, folder=missing, url=f"{site.jobs}/lost-{driver}",
            driver=driver,
        )  # fmt: skip
    assert not missing.exists()
    assert f"jobs/lost-{driver}/job.json" not in s3.keys(site.bucket)


def test_a_scheduler_that_cannot_use_the_store_is_found_out_at_once(site, s3, tmp_path):
    (other := tmp_path / "other").mkdir()
    with (
        scheduler(other, AWS_ENDPOINT_URL="http://127.0.0.1:1") as (address, _),
        pytest.raises(StoreError, match=r"job\.json: cannot be read"),
    ):
        submit(["fit", "corpus", "m"], scheduler=address, folder=tmp_path, url=f"{site.jobs}/blind")
    assert "jobs/blind/job.json" not in s3.keys(site.bucket)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_job_that_is_carried_out_here_is_published_too(site, s3, monkeypatch):
    line = [
        *COMMAND, "submit", "fit", "corpus", "here", *site.model, "--scheduler", site.address, "--driver", "here",
        "--job", f"{site.jobs}/here", "--run", "here.run",
    ]  # fmt: skip
    monkeypatch.chdir(site.folder)
    assert subprocess.run(line, timeout=120, check=False).returncode == 0
    job = open_job(f"{site.jobs}/here")
    assert (job.status()["state"], job.wait(1)) == ("done", 0)
    assert "\n".join(job.logs()) + "\n" == (site.folder / "here.run" / "out.txt").read_text()
    assert subprocess.run(line, timeout=120, check=False).returncode == 0
    assert job.status()["epoch"] == 1
