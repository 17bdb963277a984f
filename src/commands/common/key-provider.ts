import { spawn } from 'node:child_process'
import { ConfigError, WRAPPED_BYTES, type Config, type KeyCommands } from '../../config.ts'
import { parseMasterKey, type MasterKey } from '../../crypto/keyring.ts'
import { decodeBase64, random, sameBytes, takeKey } from '../../crypto/primitives.ts'
import type { Channel } from '../../telemetry/channel.ts'
import { retry, type NextPause } from './retry.ts'

/**
 * Wraps and unwraps master keys with an external key management system. Keys that are configured in plain form need
 * no provider. Only starts and commands call the provider, never requests.
 */
export interface KeyProvider {
  /** Returns bytes from which `unwrap` restores the 32-byte key. */
  wrap (id: string, key: Buffer): Promise<Buffer>
  /** Returns the 32-byte key; the caller has to wipe the buffer. */
  unwrap (id: string, wrapped: Buffer): Promise<Buffer>
}

/** A master key cannot be wrapped or unwrapped. The message is one line for the operator, without secrets. */
export class KeyProviderError extends Error {
  override name = 'KeyProviderError'
  /** Whether a retry may succeed. */
  readonly mayPass: boolean

  constructor (message: string, mayPass = false) {
    super(message)
    this.mayPass = mayPass
  }
}

/** Three retries after the first attempt (CR-10). */
const MAX_ATTEMPTS = 4
const FIRST_PAUSE = 200

/** Runs the configured commands. Aborting `stopped` kills a running command, ends the retries and rejects. */
export function execProvider (commands: Config['keyCommands'], stopped?: AbortSignal): KeyProvider {
  const { wrap, unwrap } = commands ?? {}
  const call = (command: string[], id: string, input: Buffer, name: string, effect?: string) =>
    retry(() => run(command, commands!, id, input, stopped), nextPause(name, effect), stopped)
  return {
    async wrap (id, key) {
      if (wrap === undefined) throw new ConfigError('MASTER_KEY_WRAP_COMMAND is not set: it is required to wrap a new master key')
      const input = Buffer.from(key.toString('base64'))
      try {
        const wrapped = await call(wrap, id, input, 'MASTER_KEY_WRAP_COMMAND')
        if (containsKey(wrapped, key)) {
          throw new KeyProviderError('MASTER_KEY_WRAP_COMMAND wrote the unwrapped key')
        }
        return wrapped
      } finally {
        input.fill(0)
      }
    },

    async unwrap (id, wrapped) {
      if (unwrap === undefined) {
        throw new ConfigError(`Master key ${id} is wrapped, but MASTER_KEY_UNWRAP_COMMAND is not set`)
      }
      const output = await call(unwrap, id, wrapped, 'MASTER_KEY_UNWRAP_COMMAND', `Master key ${id} cannot be unwrapped: `)
      const key = decodeBase64(output.toString('latin1').replace(/\r?\n$/, ''))
      const { length } = output
      output.fill(0)
      if (key?.length === 32) return key
      key?.fill(0)
      throw new KeyProviderError(
        `Master key ${id} cannot be unwrapped: MASTER_KEY_UNWRAP_COMMAND wrote ${length} bytes; expected the base64 of 32 bytes`
      )
    }
  }
}

// Search only for the beginning of an encoded key, because its last characters depend on padding and following bytes.
const SEARCHED_CHARACTERS = 40

/** Whether the output contains the plain key: raw, or encoded as hex or base64. */
function containsKey (output: Buffer, key: Buffer): boolean {
  const hex = key.toString('hex')
  const written = [hex, hex.toUpperCase(), key.toString('base64'), key.toString('base64url')]
  const forms = written.flatMap((text) => [text, Buffer.from(text).toString('base64')])
  // Some tools wrap lines or separate bytes with spaces.
  const text = output.toString('latin1').replace(/\s/g, '')
  return output.includes(key) || forms.some((form) => text.includes(form.slice(0, SEARCHED_CHARACTERS)))
}

/** Caches unwrapped keys, so that the supervisor runs the unwrap command once for all workers. */
export function rememberingProvider (provider: KeyProvider): KeyProvider {
  const known = new Map<string, Promise<ReturnType<typeof takeKey>>>()
  return {
    wrap: provider.wrap,
    async unwrap (id, wrapped) {
      const name = `${id}:${wrapped.toString('base64')}`
      const opened = known.get(name) ?? provider.unwrap(id, wrapped).then(takeKey)
      known.set(name, opened)
      try {
        return (await opened).export()
      } catch (error) {
        known.delete(name)
        throw error
      }
    }
  }
}

/** Whether a master key has the form `id:exec:base64`, and not `id:base64`. */
export const isWrapped = (text: string) => text.split(':').length > 2

/** Parses a master key of either form; unwraps it if necessary. */
export async function masterKeyOf (text: string, provider: KeyProvider): Promise<MasterKey> {
  if (!isWrapped(text)) return parseMasterKey(text)
  const [id = '', , wrapped = ''] = text.split(':')
  return { id, key: takeKey(await provider.unwrap(id, Buffer.from(wrapped, 'base64'))) }
}

/**
 * Creates a random master key and returns it in the form `id:exec:base64`. Verifies that the wrapped key can be
 * unwrapped. Never returns the plain key.
 */
export async function makeWrappedKey (provider: KeyProvider, id: string): Promise<string> {
  const key = random(32)
  try {
    const wrapped = await provider.wrap(id, key)
    const again = await provider.unwrap(id, wrapped)
    const isSame = sameBytes(key, again)
    again.fill(0)
    if (isSame) return `${id}:exec:${wrapped.toString('base64')}`
  } finally {
    key.fill(0)
  }
  throw new KeyProviderError('MASTER_KEY_UNWRAP_COMMAND returned a different key than MASTER_KEY_WRAP_COMMAND received')
}

// Exponential backoff with jitter.
const nextPause = (name: string, effect = ''): NextPause => (error, attempt) => {
  if (!(error instanceof KeyProviderError)) throw error
  if (error.mayPass && attempt < MAX_ATTEMPTS) return FIRST_PAUSE * 2 ** (attempt - 1) * (1 + Math.random())
  const often = attempt > 1 ? `, ${attempt} times in a row` : ''
  const advice = error.mayPass ? '; run it manually to see its standard error, which is not shown here' : ''
  throw new KeyProviderError(`${effect}${name} ${error.message}${often}${advice}`)
}

/**
 * Runs a command without a shell, writes `input` to its standard input and resolves with its standard output. Standard
 * error is discarded, because it may contain secrets. The process group is killed on timeout, on too much output and
 * on abort.
 */
async function run (
  [program = '', ...args]: string[], { env, timeout }: KeyCommands, id: string, input: Buffer, stopped?: AbortSignal
): Promise<Buffer> {
  stopped?.throwIfAborted()
  const child = start(program, args, { ...env, MASTER_KEY_ID: id })
  return new Promise((resolve, reject) => {
    const output: Buffer[] = []
    const wipe = () => output.forEach((piece) => piece.fill(0))
    let size = 0
    const settle = () => {
      clearTimeout(timer)
      stopped?.removeEventListener('abort', interrupt)
    }
    const end = (error: Error) => {
      settle()
      wipe()
      reject(error)
    }
    const fail = (message: string, mayPass: boolean) => end(new KeyProviderError(message, mayPass))
    const kill = (error: Error) => {
      end(error)
      child.stdout.destroy()
      try {
        process.kill(-child.pid!, 'SIGKILL')
      } catch {
        // The process has already exited.
      }
    }
    const interrupt = () => kill(stopped!.reason as Error)
    const timer = setTimeout(
      () => kill(new KeyProviderError(`timed out after ${timeout} s`, true)), timeout * 1000
    )
    stopped?.addEventListener('abort', interrupt)
    child.on('error', (error: NodeJS.ErrnoException) => fail(`cannot be run (${error.code})`, false))
    // The command may exit without reading its input (EPIPE).
    child.stdin.on('error', () => {}).end(input)
    child.stdout.on('data', (piece: Buffer) => {
      output.push(piece)
      size += piece.length
      if (size > WRAPPED_BYTES) kill(new KeyProviderError(`wrote more than ${WRAPPED_BYTES} bytes`))
    })
    child.on('close', (code, signal) => {
      if (code !== 0) return fail(`ended with ${signal ?? code}`, true)
      // Empty output is an error: in a pipeline, the last program can succeed although an earlier program failed.
      if (size === 0) return fail('wrote nothing', true)
      settle()
      resolve(Buffer.concat(output))
      wipe()
    })
  })
}

// `detached` creates a process group, so that child processes of the command can be killed, too. `spawn` throws some
// errors, and emits others as `error` events.
function start (program: string, args: string[], env: KeyCommands['env']) {
  try {
    return spawn(program, args, { env, stdio: ['pipe', 'pipe', 'ignore'], detached: true })
  } catch (error) {
    throw new KeyProviderError(`cannot be run (${(error as NodeJS.ErrnoException).code})`)
  }
}

// Workers request unwrapped master keys from the supervisor. So the unwrap command runs once, and a worker can be
// replaced while the key management system is unavailable. Keys are sent over IPC, never through the environment.

const UNWRAP = 'unwrapMasterKey'

/** The handlers of the supervisor. Messages contain bytes as base64. */
export const keyHandlers = (provider: KeyProvider) => ({
  [UNWRAP]: async ({ id, wrapped }: { id: string, wrapped: string }) => {
    const key = await provider.unwrap(id, Buffer.from(wrapped, 'base64'))
    try {
      return key.toString('base64')
    } finally {
      key.fill(0)
    }
  }
})

/** The key provider of a worker. */
export const remoteProvider = (channel: Channel): KeyProvider => ({
  wrap: () => Promise.reject(new KeyProviderError('A worker cannot create master keys')),
  unwrap: async (id, wrapped) => {
    const key = await channel.request<string>(UNWRAP, { id, wrapped: wrapped.toString('base64') })
      .catch((error: Error) => { throw new KeyProviderError(error.message) })
    return Buffer.from(key, 'base64')
  }
})
