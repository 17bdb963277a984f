import type { Channel } from '../../telemetry/channel.ts'
import { KeyProviderError, type KeyProvider } from './key-provider.ts'

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
