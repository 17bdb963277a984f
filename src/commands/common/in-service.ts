import { AsyncLocalStorage } from 'node:async_hooks'
import { sendRequest, type Client, type DirectoryLocked } from '../../db/database.ts'
import { refuse } from './command-errors.ts'
import type { Opened } from './open.ts'
import { warn, withTerminal, write } from './stdio.ts'

// One process at a time can have the embedded database open. While the service has the database open, a command of an
// operator runs inside the service: the process of the command sends the arguments, and prints the output that the
// service sends back.

const opened = new AsyncLocalStorage<Opened>()

/** The database and the keys of the service, for a command that runs inside the service. */
export const openedByService = (): Opened | undefined => opened.getStore()

interface Output { out?: string, err?: string }

/**
 * Runs a command inside the service that has the database open, and prints its output. Returns the exit status. Throws
 * `locked` if another command has the database open, not a service.
 */
export async function sendCommand (locked: DirectoryLocked, command: string[]): Promise<number> {
  const answer = await sendRequest(locked.dir, { command }, async (part) => {
    const { out, err } = part as Output
    if (out !== undefined) await write(out)
    if (err !== undefined) warn(err)
  }).catch((error: Error) => error.name === 'StartError'
    ? Promise.reject(error)
    : refuse(`The command did not complete in the service, which has the database open: ${error.message}`))
  if (typeof answer?.result !== 'number') throw locked
  return answer.result
}

/** The arguments of a command in a request; undefined for other requests. */
export const commandIn = ({ command }: Record<string, unknown>): string[] | undefined =>
  Array.isArray(command) && command.every((word) => typeof word === 'string') ? command : undefined

/** Runs a command with the database and keys of the service. Only the client gets the output, with any secrets. */
export function runInService<T> (service: Opened, client: Client, run: () => Promise<T>): Promise<T> {
  const send = (output: Output) => client.send(output)
  const terminal = {
    write: (chunk: string | Uint8Array) => send({ out: Buffer.from(chunk as string).toString() }),
    // Fails if the client has disconnected; the line is then lost.
    warn: (line: string) => { send({ err: line }).catch(() => {}) }
  }
  return opened.run(service, () => withTerminal(terminal, run))
}
