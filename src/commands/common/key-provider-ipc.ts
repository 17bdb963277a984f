import type { Channel } from '../../telemetry/channel.ts'
import { KeyProviderError, type KeyProvider } from './key-provider.ts'

// Workers request unwrapped master keys from the supervisor, so that the command runs once and a worker can start while
// it fails. Keys are sent over the IPC channel, never through the environment.

const UNWRAP = 'unwrapMasterKey'

/** The supervisor's side. Bytes are base64 in both directions. */
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
