"""Records of jobs in an object store; nothing here needs a cluster."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

import pytest
from clusters import wait_until

from distmom.cli.main import main
from distmom.corpus.files.storage import ObjectStorage
from distmom.engine.directory import epochs
from distmom.engine.directory.epochs import EPOCH, LEASE, Beat, Owner
from distmom.errors import StoreError, UsageError
from distmom.jobs import list_jobs, open_job, publisher, submit
from distmom.jobs.places import OUTPUT_BYTES, ObjectPlace
from distmom.jobs.publisher import Publisher, publishing
from distmom.jobs.record import new_record
from distmom.jobs.remote import create_directory

NOWHERE = "tcp://127.0.0.1:1"


@pytest.fixture
def bucket(s3, request):
    name = f"b{abs(hash(request.node.name)) % 10**12}"
    s3.make_bucket(name)
    return name


def published(bucket, tmp_path, *arguments, name="job"):
    """Create a job as `submit` does, and its directory as the scheduler does; return both."""
    record = new_record(
        arguments or ["fit", "c", "m"], NOWHERE, folder=tmp_path, directory=name, url=f"s3://{bucket}/{name}"
    )
    ObjectPlace(record.url).create(record.dump())
    create_directory(tmp_path / name, record.dump().decode())
    return open_job(record.url), tmp_path / name


def begun(run, epoch, **changes):
    """Begin an epoch by a process of another host, which beats for the first time."""
    (run / "epochs").mkdir(exist_ok=True)
    owner = replace(Owner.this(), host="elsewhere", boot="other", **changes)
    assert epochs.put_once(epochs.file_of(run, epoch), EPOCH.dump(asdict(owner)))
    beaten(run, epoch, 1)


def beaten(run, epoch, count):
    beat = Beat(epoch, count, "other", 0.0, 0.0, "sketch", count, 10)
    (run / "lease.json").write_bytes(LEASE.dump(asdict(beat)))


def test_of_submitters_of_one_name_one_wins(s3, bucket, tmp_path):
    url, n, results, refused = f"s3://{bucket}/jobs/same", 8, [], []
    records = [new_record(["fit", "c", f"m{number}"], NOWHERE, url=url) for number in range(n)]
    gate = threading.Barrier(n)

    def create(record):
        gate.wait()
        try:
            ObjectPlace(url).create(record.dump())
        except UsageError as error:
            refused.append(str(error))
        else:
            results.append(record)

    with ThreadPoolExecutor(n) as pool:
        list(pool.map(create, records))
    [winner] = results
    assert refused == [f"{url}: exists and is another job"] * (n - 1)
    assert s3.get(bucket, "jobs/same/job.json") == winner.dump()
    # The request whose response was lost is repeated, and is not refused.
    ObjectPlace(url).create(winner.dump())


def test_a_name_that_is_taken_is_refused_before_a_driver_is_started(s3, bucket, tmp_path, capsys):
    published(bucket, tmp_path, name="taken")
    line = [
        "submit",
        "fit",
        "c",
        "m",
        "--scheduler",
        NOWHERE,
        "--driver",
        "here",
        "--run",
        str(tmp_path / "run"),
    ]
    assert main([*line, "--job", f"s3://{bucket}/taken"]) == 2
    assert "taken: exists and is another job" in capsys.readouterr().err
    assert not list((tmp_path / "run").iterdir())


def test_everything_in_the_directory_is_published(s3, bucket, tmp_path):
    job, run = published(bucket, tmp_path)
    assert job.status()["state"] == "queued"
    copying, printed = Publisher(run, job.record.url), b""
    copying.begin()
    begun(run, 1)
    for number, size in enumerate((10, 0, OUTPUT_BYTES - 10, 3 * OUTPUT_BYTES + 7)):
        printed += bytes([ord("a") + number]) * size
        (run / "out.txt").write_bytes(printed)
        copying.publish()
        assert "\n".join(job.logs()).encode() == printed
    beaten(run, 1, 2)
    copying.publish()
    assert job.status(0.01)["pass"] == "sketch"
    assert epochs.write_end(run, 1, epochs.End("failed", 4, "StoreError", "broken"))
    copying.publish()
    status = job.status()
    assert (status["state"], status["exit_code"], status["error"]) == ("failed", 4, "StoreError: broken")
    assert status["resume"] == f"distmom jobs resume s3://{bucket}/job"
    assert (status["url"], status["directory"]) == (f"s3://{bucket}/job", str(run))
    assert job.wait(1) == 4
    for name in ("job.json", "lease.json", "epochs/0001.json", "epochs/0001.end.json"):
        assert s3.get(bucket, f"job/{name}") == (run / name).read_bytes()
    assert s3.keys(bucket) == {
        "job/job.json", "job/lease.json", "job/epochs/0001.json", "job/epochs/0001.end.json",
        *(f"job/out/00000{part}" for part in range(5)),
    }  # fmt: skip


def test_a_publisher_that_was_late_takes_nothing_back(s3, bucket, tmp_path):
    job, run = published(bucket, tmp_path)
    old, new = Publisher(run, job.record.url), Publisher(run, job.record.url)
    begun(run, 1)
    (run / "out.txt").write_bytes(b"one\n")
    old.publish()
    (run / "out.txt").write_bytes(b"one\ntwo\n")
    begun(run, 2)
    new.publish()
    # As the old one would read before the new driver wrote.
    (run / "out.txt").write_bytes(b"one\nt")
    beaten(run, 1, 7)
    old.publish()
    assert list(job.logs()) == ["one", "two"]
    assert json.loads(s3.get(bucket, "job/lease.json"))["epoch"] == 2
    # The new one is not disturbed by what it finds changed.
    (run / "out.txt").write_bytes(b"one\ntwo\nthree\n")
    beaten(run, 2, 2)
    new.publish()
    assert list(job.logs()) == ["one", "two", "three"]
    assert json.loads(s3.get(bucket, "job/lease.json"))["count"] == 2


def test_a_driver_that_never_begins_is_lost_and_may_be_replaced(s3, bucket, tmp_path, monkeypatch):
    job, run = published(bucket, tmp_path)

    def start(pid):
        owner = replace(Owner.this(), host="elsewhere", boot="other", pid=pid)
        (run / "epochs").mkdir(exist_ok=True)
        epochs.file_of(run, 0).write_bytes(EPOCH.dump(asdict(owner)))

    monkeypatch.setattr(epochs, "START_S", 0.5)
    start(1001)
    Publisher(run, job.record.url).publish_start()
    status = job.status(0.01)
    assert (status["state"], status["host"], status["pid"], status["epoch"]) == ("lost", "elsewhere", 1001, 0)
    # The record of another one that was started meanwhile is not replaced by that of the first.
    late, read = Publisher(run, job.record.url), ObjectStorage.read_tagged

    def overtaken(self, key, limit=None):
        found = read(self, key, limit)
        monkeypatch.setattr(ObjectStorage, "read_tagged", read)
        start(1002)
        Publisher(run, job.record.url).publish_start()
        return found

    monkeypatch.setattr(ObjectStorage, "read_tagged", overtaken)
    late.publish_start()
    assert job.place.records().owner.pid == 1002
    begun(run, 1)
    Publisher(run, job.record.url).publish()
    assert job.place.records().epoch == 1


def test_a_driver_whose_beat_stands_still_is_lost(s3, bucket, tmp_path):
    job, run = published(bucket, tmp_path)
    begun(run, 1)
    Publisher(run, job.record.url).publish()
    status = job.status(patience_s=0.5)
    assert (status["state"], status["host"], status["epoch"]) == ("lost", "elsewhere", 1)
    with pytest.raises(TimeoutError):
        job.wait(0.1)


def test_a_job_whose_objects_were_removed_is_not_waited_for(s3, bucket, tmp_path):
    job, _ = published(bucket, tmp_path)
    assert job.status()["state"] == "queued"
    ObjectPlace(job.record.url).remove()
    for look in (lambda: job.wait(5.0), job.status, job.cancel, lambda: next(job.logs(follow=True))):
        with pytest.raises(UsageError, match=f"{job.record.url}: there is no such job"):
            look()


def test_a_job_that_was_cancelled_before_it_began_ends_when_its_driver_comes(s3, bucket, tmp_path):
    job, run = published(bucket, tmp_path)
    assert job.cancel()["state"] == "cancelled"
    # The directory and the URL are the same job.
    assert open_job(run).status()["state"] == "cancelled"
    assert main(["jobs", "run", str(run)]) == 130
    status = job.status()
    assert (status["state"], status["epoch"], status["exit_code"]) == ("cancelled", 1, 130)
    assert main(["jobs", "wait", job.record.url]) == 130


def test_a_request_that_was_taken_back_is_forgotten_by_the_directory(s3, bucket, tmp_path):
    job, run = published(bucket, tmp_path, "ingest", str(tmp_path / "none.tsv"), "c")
    job.cancel()
    assert main(["jobs", "run", str(run)]) == 130
    job.place.forget_request()
    assert main(["jobs", "run", str(run)]) == 2
    status = job.status()
    assert (status["state"], status["exit_code"], status["epoch"]) == ("failed", 2, 2)
    assert "there is no such file" in status["error"]


def test_another_directory_of_the_job_is_refused(s3, bucket, tmp_path, capsys):
    job, run = published(bucket, tmp_path)
    begun(run, 1)
    Publisher(run, job.record.url).publish()
    other = tmp_path / "other"
    create_directory(other, job.record.dump().decode())
    assert main(["jobs", "run", str(other)]) == 2
    assert "with 1 epochs, got 0: does this host see" in capsys.readouterr().err
    begun(other, 1)
    with pytest.raises(UsageError, match="is carried out in another directory"):
        Publisher(other, job.record.url).publish()
    with pytest.raises(UsageError, match="is the directory of another job"):
        create_directory(run, new_record(["fit", "c", "m"], NOWHERE).dump().decode())


def test_a_store_that_fails_for_a_while_delays_the_records(s3, bucket, tmp_path, monkeypatch, caplog):
    job, run = published(bucket, tmp_path)
    monkeypatch.setattr(publisher, "OBJECTS_S", 0.05)
    n_requests, put = 0, ObjectStorage._put

    def failing(self, key, content, **options):
        nonlocal n_requests
        n_requests += 1
        if n_requests <= 5:
            raise StoreError(f"{key}: cannot be written")
        return put(self, key, content, **options)

    monkeypatch.setattr(ObjectStorage, "_put", failing)
    with publishing(run, job.record.url, pytest.fail):
        begun(run, 1)
        wait_until(lambda: n_requests > 3)
        assert job.status()["state"] == "queued"
        wait_until(lambda: job.status(0.01)["epoch"] == 1)
        epochs.write_end(run, 1, epochs.End("done", 0))
    assert job.status()["state"] == "done"
    assert caplog.text.count("the records of the job were not published") == 1


def test_jobs_are_listed_and_found_by_their_ids(s3, bucket, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DISTMOM_JOBS", f"s3://{bucket}/jobs")
    monkeypatch.chdir(tmp_path)
    made = []
    for command in ("fit", "predict"):
        record = new_record([command, "a", "b"], NOWHERE)
        assert record.url == f"s3://{bucket}/jobs/{record.id}"
        assert record.run == str(tmp_path / "distmom-jobs" / record.id)
        ObjectPlace(record.url).create(record.dump())
        made.append(record.id)
    s3.put(bucket, "jobs/something/else", b"no job")
    assert {job.id for job in list_jobs()} == set(made)
    assert main(["jobs", "list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert {tuple(line.split()[:2]) for line in shown[1:]} == {(name, "queued") for name in made}
    assert open_job(made[0]).record.arguments == ["fit", "a", "b"]
    assert main(["jobs", "status", "fit-none"]) == 2
    assert "there is no such job" in capsys.readouterr().err


def test_a_record_that_was_altered_or_moved_is_refused(s3, bucket, tmp_path):
    job, _ = published(bucket, tmp_path)
    content = s3.get(bucket, "job/job.json")
    s3.put(bucket, "moved/job.json", content)
    with pytest.raises(StoreError, match=r"url: expected s3://.*/moved, got s3://.*/job"):
        open_job(f"s3://{bucket}/moved")
    s3.put(bucket, "job/job.json", content.replace(b"fit", b"fiT"))
    with pytest.raises(StoreError, match="checksum"):
        open_job(job.record.url)


def test_certificates_are_not_stored_where_other_machines_read_the_record(tmp_path):
    record = new_record(["fit", "c", "m"], NOWHERE, tls={"key": "key.pem"}, url="s3://bucket/job")
    assert record.tls == {}
    assert new_record(["fit", "c", "m"], NOWHERE, tls={"key": "key.pem"}).tls["key"].endswith("/key.pem")


def test_places_that_cannot_hold_a_job_are_refused():
    for url in ("https://host/jobs", "s3://bucket", "s3://bucket/"):
        with pytest.raises(UsageError, match=r"cannot hold a job: expected s3://BUCKET/PREFIX"):
            submit(["fit", "c", "m"], scheduler=NOWHERE, url=url)
    with pytest.raises(UsageError, match="without user, query or fragment"):
        submit(["fit", "c", "m"], scheduler=NOWHERE, url="s3://me:secret@bucket/jobs")
