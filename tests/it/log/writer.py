"""Writes numbered Hangar lines and rotates its file as one kind of logger or rotator does. In a process of its own."""
import gzip
import os
import shutil
import subprocess
import sys
import time

KIND, DIR, ROUNDS, PER_ROUND = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PATH = os.path.join(DIR, "hangar.log")
count = 0


def line():
    global count
    count += 1
    text = (
        '{"event": "mcp_server_started: s%d, mode=subprocess, tools=1", "level": "info", '
        '"logger": "mcp_hangar.domain.model.mcp_server", "timestamp": "2026-11-30T15:20:%02d.%06dZ", "service": "mcp-hangar"}\n'
        % (count, count // 1000, count % 1000 * 1000)
    ).encode()
    if KIND == "kubelet":
        text = b"2026-11-30T15:20:53.435902123Z stderr F " + text
    if KIND == "noise":
        text = b'\xff\xfe{"event": "\xc3\x28\n\x00\x00\x00\n' + text + b"\x00"
    return text


def shift():
    for n in range(9, 0, -1):
        if os.path.exists(f"{PATH}.{n}"):
            os.rename(f"{PATH}.{n}", f"{PATH}.{n + 1}")


def burst(f, n=PER_ROUND, pause=0.0005):
    for _ in range(n):
        text = line()
        if KIND == "partial":
            f.write(text[:60])
            time.sleep(pause)
            f.write(text[60:])
        else:
            f.write(text)
        time.sleep(pause)


def append():
    return open(PATH, "ab", buffering=0)


def rename_create(pause=0.0005):
    for _ in range(ROUNDS):
        with append() as f:
            burst(f, pause=pause)
        shift()
        os.rename(PATH, PATH + ".1")


def keeps_descriptor():
    f = append()
    for _ in range(ROUNDS):
        burst(f, PER_ROUND // 2)
        shift()
        os.rename(PATH, PATH + ".1")
        open(PATH, "ab").close()
        burst(f, PER_ROUND // 2)
        f = append()


def copytruncate():
    with append() as f:
        for _ in range(ROUNDS):
            burst(f)
            shift()
            shutil.copyfile(PATH, PATH + ".1")
            os.truncate(PATH, 0)
        burst(f)


def copytruncate_concurrent():
    rotator = (
        "import os, shutil, sys, time\n"
        "path = sys.argv[1]\n"
        "for n in range(int(sys.argv[2])):\n"
        "    time.sleep(0.3)\n"
        "    for k in range(9, 0, -1):\n"
        "        if os.path.exists(f'{path}.{k}'): os.rename(f'{path}.{k}', f'{path}.{k+1}')\n"
        "    shutil.copyfile(path, path + '.1')\n"
        "    os.truncate(path, 0)\n"
    )
    with append() as f:
        other = subprocess.Popen([sys.executable, "-c", rotator, PATH, str(ROUNDS)])
        while other.poll() is None:
            burst(f, 10, 0.001)
        burst(f)


def truncate_grow(flags=os.O_APPEND):
    f = os.fdopen(os.open(PATH, os.O_WRONLY | os.O_CREAT | flags, 0o644), "wb", buffering=0)
    for n in range(ROUNDS):
        burst(f, PER_ROUND + 20 * n)
        time.sleep(0.4)  # What is not read by now nobody can know.
        os.truncate(PATH, 0)
        big = b"".join(line() for _ in range(PER_ROUND + 20 * (n + 1)))
        f.write(big)
        time.sleep(0.4)


def symlink_swap():
    for n in range(ROUNDS):
        target = os.path.join(DIR, f"app-{n}.log")
        open(target, "ab").close()
        os.symlink(target, PATH + ".new")
        os.replace(PATH + ".new", PATH)
        with open(target, "ab", buffering=0) as f:
            burst(f)


def kubelet():
    pods = os.path.join(DIR, "pods")
    os.makedirs(pods, exist_ok=True)
    log = os.path.join(pods, "0.log")
    open(log, "ab").close()
    os.symlink(log, PATH)
    previous = None
    for n in range(ROUNDS):
        with open(log, "ab", buffering=0) as f:
            burst(f)
        rotated = f"{log}.20261130-15200{n}"
        os.rename(log, rotated)
        open(log, "ab").close()
        if previous:
            with open(previous, "rb") as src, gzip.open(previous + ".gz", "wb") as dst:
                shutil.copyfileobj(src, dst)
            os.remove(previous)
        previous = rotated


def delete_recreate():
    for _ in range(ROUNDS):
        with append() as f:
            burst(f)
            time.sleep(0.3)
        os.remove(PATH)


def directory_goes():
    for _ in range(ROUNDS):
        os.makedirs(DIR, exist_ok=True)
        with append() as f:
            burst(f)
            time.sleep(0.3)
        shutil.rmtree(DIR)
        time.sleep(0.1)
    os.makedirs(DIR)
    with append() as f:
        burst(f)


{
    "rename_create": rename_create,
    "back_to_back": lambda: rename_create(0),
    "keeps_descriptor": keeps_descriptor,
    "copytruncate": copytruncate,
    "copytruncate_concurrent": copytruncate_concurrent,
    "truncate_grow": truncate_grow,
    "hole": lambda: truncate_grow(0),
    "symlink_swap": symlink_swap,
    "kubelet": kubelet,
    "partial": rename_create,
    "noise": rename_create,
    "delete_recreate": delete_recreate,
    "directory_goes": directory_goes,
}[KIND]()
print(count)
