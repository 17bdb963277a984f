import type { Channel } from '../../telemetry/channel.ts'
import { KeyProviderError, type KeyProvider } from './key-provider.ts'

// Workers let their supervisor unwrap master keys: the command runs once, and the start of a worker does not depend on
// it. Keys go over the IPC channel, never through an environment.

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
