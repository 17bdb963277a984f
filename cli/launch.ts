import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { accessSync, constants as files, statSync } from 'node:fs'
import { constants } from 'node:os'
import { delimiter, join } from 'node:path'
import { setImmediate as turn } from 'node:timers/promises'
import { Failure, reasonOf } from './failure.ts'
import { processFields } from './files.ts'
import { tell } from './output.ts'

// Starts the command of `run`. Its exit status is that of `env` and of shells: 127 for a command that does not exist,
// 126 for one that cannot be executed, 128 + N after signal N.

const NOT_FOUND = 127
const NOT_EXECUTABLE = 126

/** All signals that a process can catch, without those of its own children, of the terminal's stops and of crashes. */
const SIGNALS = ([
  'SIGHUP', 'SIGINT', 'SIGQUIT', 'SIGTERM', 'SIGUSR1', 'SIGUSR2', 'SIGALRM', 'SIGVTALRM', 'SIGPROF', 'SIGWINCH',
  'SIGCONT', 'SIGIO', 'SIGURG', 'SIGXCPU', 'SIGXFSZ', 'SIGTRAP', 'SIGABRT', 'SIGSYS', 'SIGPIPE', 'SIGPWR'
] as NodeJS.Signals[]).filter((signal) => constants.signals[signal] !== undefined)

/** The file that `execvp` would execute, or the status of the failure. */
function findCommand (command: string, path: string | undefined): string | typeof NOT_FOUND | typeof NOT_EXECUTABLE {
  const candidates = command.includes('/')
    ? [command]
    : (path ?? '/bin:/usr/bin').split(delimiter).map((folder) => join(folder === '' ? '.' : folder, command))
  let status: typeof NOT_FOUND | typeof NOT_EXECUTABLE = NOT_FOUND
  for (const candidate of command === '' ? [] : candidates) {
    try {
      if (statSync(candidate).isDirectory()) { status = NOT_EXECUTABLE; continue }
      accessSync(candidate, files.X_OK)
      return candidate
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EACCES') status = NOT_EXECUTABLE
    }
  }
  return status
}

/** Where this process stands among the groups of its terminal, if it has one. */
interface Standing { hasTerminal: boolean, isInForeground: boolean, leadsSession: boolean }

function standing (): Standing {
  // proc(5): after the state come the parent, the group, the session, the terminal and the terminal's group.
  const [, , group, session, terminal, foreground] = processFields('self') ?? ofPs()
  return {
    hasTerminal: terminal !== '0',
    isInForeground: terminal !== '0' && group === foreground,
    leadsSession: session === String(process.pid)
  }
}

/** The same from `ps`, on systems without `/proc`. */
function ofPs (): string[] {
  try {
    const text = execFileSync('ps', ['-o', 'pgid=,sess=,tpgid=', '-p', String(process.pid)], { encoding: 'utf8', timeout: 1000 })
    const [group = '', , foreground = '0'] = text.trim().split(/\s+/)
    // The session of macOS is an address. The leader of a session also leads its group.
    const leads = group === String(process.pid) && foreground === group && process.ppid === 1
    return ['', '', group, leads ? String(process.pid) : '', foreground === '0' ? '0' : '1', foreground]
  } catch { return ['', '', '', '', '0', ''] }
}

/** Whether a signal is passed on to the child. The terminal sends its signals to the whole group, with the child. */
function isForChild (signal: NodeJS.Signals, atStart: Standing): boolean {
  if (signal === 'SIGTERM') return true
  const now = standing()
  if (signal === 'SIGHUP') {
    if (atStart.leadsSession) return true
    // A terminal that is gone told the whole group.
    if (atStart.hasTerminal && !now.hasTerminal) {
      atStart.hasTerminal = false
      return false
    }
  }
  return !now.isInForeground
}

/**
 * Starts a command and returns its exit status. `mayReplace`: nothing is left to do after the command, so the command
 * may take the place of this process. `prepare` runs when signals no longer end this process; its result undoes it.
 */
export async function launch (
  command: readonly string[], environment: Record<string, string>, mayReplace: boolean, prepare: () => () => void
): Promise<number> {
  const [name = '', ...args] = command
  const file = findCommand(name, environment.PATH)
  if (file === NOT_FOUND) return complain(`${name}: there is no such command.`, NOT_FOUND)
  if (file === NOT_EXECUTABLE) return complain(`${name}: this cannot be executed.`, NOT_EXECUTABLE)

  if (mayReplace) replaceProcess(file, command, environment)
  const signals = catchSignals()
  if (process.pid === 1) tell('This process is process 1 and stays beside the command. Start the container with --init.')
  const undo = prepare()
  try {
    // A signal that came before the command is dispatched now, and the command gets it.
    await turn()
    const child = await started(file, name, args, environment).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'ENOEXEC') throw error
      // Like execvp: a shell reads a file that is no program.
      return started('/bin/sh', 'sh', [file, ...args], environment)
    })
    return await new Promise((resolve) => {
      child.on('exit', (code, signal) => resolve(signal === null ? code ?? 0 : 128 + constants.signals[signal]))
      signals.passTo(child)
    })
  } catch (error) {
    const { code = '' } = error as NodeJS.ErrnoException
    if (code === 'E2BIG') {
      throw new Failure('The values are too large for the environment of a program. Give them as files with --mount and --except.')
    }
    if (NO_PROGRAM.includes(code)) return complain(`${name}: this cannot be executed: ${code}.`, NOT_EXECUTABLE)
    throw new Failure(`${name} cannot be started: ${reasonOf(error)}.`)
  } finally {
    undo()
  }
}

type Execve = (file: string, args: readonly string[], env: Record<string, string>) => never

/**
 * Replaces this process by the command, where Node.js can do it and throws if the system refuses (26.1 and newer: the
 * versions before end the process). Returns if it cannot. Measured in docs/decisions/0098.
 */
function replaceProcess (file: string, command: readonly string[], environment: Record<string, string>): void {
  const [major = 0, minor = 0] = process.versions.node.split('.').map(Number)
  const { execve } = process as { execve?: Execve }
  if (execve === undefined || major < 26 || (major === 26 && minor < 1)) return
  // Node.js ignores these signals, and an ignored signal would stay ignored. A caught one gets its default action.
  for (const signal of ['SIGPIPE', 'SIGXFSZ'] as const) process.on(signal, () => {})
  process.removeAllListeners('warning')
  try { execve.call(process, file, command, environment) } catch { /* A child process says what is wrong. */ }
}

/** What the system says of a file that it cannot execute, such as a script whose interpreter is missing. */
const NO_PROGRAM = ['ENOENT', 'EACCES', 'ENOEXEC', 'ENOTDIR', 'ELOOP']

/** Catches signals before the child starts, and passes those that are for the child on to it, each once. */
function catchSignals (): { passTo (child: ChildProcess): void } {
  const atStart = standing()
  let pass: ((signal: NodeJS.Signals) => void) | undefined
  const early: NodeJS.Signals[] = []
  for (const signal of SIGNALS) {
    process.removeAllListeners(signal).on(signal, () => {
      if (pass === undefined) early.push(signal)
      else if (isForChild(signal, atStart)) pass(signal)
    })
  }
  return {
    passTo (child) {
      pass = (signal) => { child.kill(signal) }
      early.forEach(pass)
    }
  }
}

/** A process that has started; rejects with the error of the system. */
function started (file: string, argv0: string, args: string[], env: Record<string, string>): Promise<ChildProcess> {
  return new Promise((resolve, reject) => {
    const child = spawn(file, args, { argv0, env, stdio: 'inherit' })
    child.once('error', reject)
    child.once('spawn', () => resolve(child))
  })
}

function complain (line: string, status: number): number {
  tell(line)
  return status
}
