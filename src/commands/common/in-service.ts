import { AsyncLocalStorage } from 'node:async_hooks'
import { sendRequest, type Client, type DirectoryLocked } from '../../db/database.ts'
import { refuse } from './command-errors.ts'
import type { Opened } from './open.ts'
import { withProgress } from './progress.ts'
import { ownTerminal, warn, withTerminal, write, type Progress, type Terminal } from './stdio.ts'

// One process at a time can have the embedded database open. While the service has the database open, a command of an
// operator runs inside the service: the process of the command sends the arguments, and prints the output that the
// service sends back.

const opened = new AsyncLocalStorage<Opened>()

/** The database and the keys of the service, for a command that runs inside the service. */
export const openedByService = (): Opened | undefined => opened.getStore()

/** A part of the output: text for a standard stream, or a call of `Progress`. */
interface Output {
  out?: string
  err?: string
  begin?: Parameters<Progress['begin']>
  /** The step prints data, so it is not shown on the terminal that shows the data. */
  isData?: boolean | undefined
  advance?: number
  left?: string
}

/**
 * Runs a command inside the service that has the database open, and prints its output. Returns the exit status. Throws
 * `locked` if another command has the database open, not a service.
 */
export function sendCommand (locked: DirectoryLocked, command: string[]): Promise<number> {
  const isShownHere = ownTerminal() === undefined && process.stdout.isTTY
  return withProgress({ left: 'The service may still complete the command.' }, async (progress) => {
    const answer = await sendRequest(locked.dir, { command }, async (part) => {
      const { out, err, begin, isData, advance, left } = part as Output
      if (out !== undefined) await write(out)
      if (err !== undefined) warn(err)
      if (left !== undefined) progress.leaves(left)
      if (begin !== undefined && !(isData && isShownHere)) progress.begin(...begin)
      if (advance !== undefined) progress.advance(advance)
    }, progress.signal).catch((error: Error) => error.name === 'StartError'
      ? Promise.reject(error)
      : refuse(`The command did not complete in the service, which has the database open: ${error.message}`))
    if (typeof answer?.result !== 'number') throw locked
    return answer.result
  })
}

/** The arguments of a command in a request; undefined for other requests. */
export const commandIn = ({ command }: Record<string, unknown>): string[] | undefined =>
  Array.isArray(command) && command.every((word) => typeof word === 'string') ? command : undefined

/**
 * Runs a command with the database and keys of the service. Only the client gets the output, with any secrets. `ending`
 * is aborted when the service stops: this ends a long command at its next step.
 */
export function runInService<T> (
  service: Opened, client: Client, ending: AbortSignal, run: () => Promise<T>
): Promise<T> {
  const signal = AbortSignal.any([client.signal, ending])
  const send = (output: Output) => client.send(output, signal)
  // Fails if the client has disconnected; the part is then lost.
  const show = (output: Output) => { send(output).catch(() => {}) }
  const terminal: Terminal = {
    write: (chunk) => send({ out: Buffer.from(chunk as string).toString() }),
    warn: (err) => show({ err }),
    progress: ({ json, isData, left }) => {
      show({ left })
      return {
        signal,
        begin: (...begin) => { if (!json) show({ begin, isData }) },
        advance (advance = 1) {
          signal.throwIfAborted()
          if (!json) show({ advance })
        },
        leaves: (left) => show({ left })
      }
    }
  }
  return opened.run(service, () => withTerminal(terminal, run))
}
