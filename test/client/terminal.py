"""Runs a command on a pseudo terminal, as an interactive shell does: in a group of its own, in the foreground.

terminal.py PLAN COMMAND...  PLAN is a list of steps, separated by spaces:
  wait=TEXT  waits until the terminal shows TEXT      type=TEXT  types TEXT and Enter
  key=HEX    types a byte, such as 03 for Ctrl-C      stopped    waits until the command is stopped
  continue   continues the command                    hangup     closes the terminal
Prints what the terminal showed, and then `status N` or `signal N`. With `leader` as the first step, the command leads
the session instead.
"""
import os, pty, select, signal, sys, time

plan, command = sys.argv[1].split(' '), sys.argv[2:]
is_leader = plan[0] == 'leader'
told_read, told_write = os.pipe()
pid, terminal = pty.fork()
if pid == 0:
    os.close(told_read)
    if is_leader:
        os.close(told_write)
        os.execvp(command[0], command)
    for name in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU, signal.SIGTSTP):
        signal.signal(name, signal.SIG_IGN)
    job = os.fork()
    if job == 0:
        os.close(told_write)
        os.setpgid(0, 0)
        os.tcsetpgrp(0, os.getpid())
        for name in (signal.SIGINT, signal.SIGQUIT, signal.SIGTTOU, signal.SIGTSTP):
            signal.signal(name, signal.SIG_DFL)
        os.execvp(command[0], command)
    os.write(told_write, b'job %d\n' % job)
    while True:
        _, status = os.waitpid(job, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.write(told_write, b'stopped\n')
            continue
        text = 'signal %d' % os.WTERMSIG(status) if os.WIFSIGNALED(status) else 'status %d' % os.WEXITSTATUS(status)
        os.write(told_write, (text + '\n').encode())
        os._exit(0)

os.close(told_write)
shown, told, end = b'', b'', time.monotonic() + 60


def pump(until):
    """Reads the terminal and the leader until the condition holds."""
    global shown, told
    while not until():
        if time.monotonic() > end:
            sys.exit('not in time; the terminal showed %r and the leader told %r' % (shown, told))
        ready, _, _ = select.select([fd for fd in (terminal, told_read) if fd is not None], [], [], 0.1)
        for fd in ready:
            try:
                data = os.read(fd, 65536)
            except OSError:
                data = b''
            if fd == terminal:
                shown += data
            else:
                told += data


for step in plan[1 if is_leader else 0:]:
    kind, _, text = step.partition('=')
    if kind == 'wait':
        pump(lambda: text.encode() in shown)
    elif kind == 'type':
        os.write(terminal, text.encode() + b'\r')
    elif kind == 'key':
        os.write(terminal, bytes.fromhex(text))
    elif kind == 'stopped':
        pump(lambda: b'stopped' in told)
    elif kind == 'continue':
        os.killpg(int(told.split()[1]), signal.SIGCONT)
    elif kind == 'hangup':
        os.close(terminal)
        terminal = None
if is_leader:
    _, status = os.waitpid(pid, 0)
    told += b'status %d' % os.WEXITSTATUS(status) if os.WIFEXITED(status) else b'signal %d' % os.WTERMSIG(status)
else:
    pump(lambda: b'status' in told or b'signal' in told)
sys.stdout.write(shown.decode() + '\n' + told.decode())
