import { KeyProviderError, type KeyProvider } from './key-provider.ts'

// Workers ask their supervisor for master keys that are kept wrapped: one process unwraps, and a worker that takes the
// place of another one needs nobody beside the service. Over the channel between the two; never in an environment.

/** What a worker asks for; bytes are base64 in both. */
export interface KeyAsked { unwrap: { id: string, wrapped: string } }
interface KeyAnswer { unwrapped: { wrapped: string } & ({ key: string } | { reason: string }) }

/** Answers a worker. */
export async function answerWith (
  provider: KeyProvider, { unwrap: { id, wrapped } }: KeyAsked, send: (answer: KeyAnswer) => void
): Promise<void> {
  try {
    const key = await provider.unwrap(id, Buffer.from(wrapped, 'base64'))
    send({ unwrapped: { wrapped, key: key.toString('base64') } })
    key.fill(0)
  } catch (error) {
    send({ unwrapped: { wrapped, reason: (error as Error).message } })
  }
}

/** The provider of a worker, and who takes its supervisor's answers. */
export function askingProvider (tell: (question: KeyAsked) => void) {
  const waiting = new Map<string, (answer: KeyAnswer['unwrapped']) => void>()
  const provider: KeyProvider = {
    wrap: () => Promise.reject(new KeyProviderError('A worker makes no master keys')),
    unwrap: async (id, bytes) => {
      const wrapped = bytes.toString('base64')
      const answer = await new Promise<KeyAnswer['unwrapped']>((resolve) => {
        waiting.set(wrapped, resolve)
        tell({ unwrap: { id, wrapped } })
      })
      waiting.delete(wrapped)
      if ('reason' in answer) throw new KeyProviderError(answer.reason)
      return Buffer.from(answer.key, 'base64')
    }
  }
  return {
    provider,
    /** Whether the message was an answer. */
    receive (message: unknown): boolean {
      const { unwrapped } = message as Partial<KeyAnswer>
      if (unwrapped === undefined) return false
      waiting.get(unwrapped.wrapped)?.(unwrapped)
      return true
    }
  }
}
