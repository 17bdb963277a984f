import type { KeyObject } from 'node:crypto'
import type { Keyring } from '../../crypto/keyring.ts'
import { hmac, takeKey } from '../../crypto/primitives.ts'
import { backupContext } from '../keys/contexts.ts'
import { makeKey } from '../keys/keys.ts'

/** Returns the MAC of the next frame of a backup file. Each MAC also covers the previous MAC. */
export type FrameChain = (...frame: Buffer[]) => Buffer

/** Begins the chain of MACs of a new backup under a new key. Also returns the wrapped key, to store in the backup. */
export function beginChain (keyring: Keyring, id: string): { next: FrameChain, wrapped: Buffer } {
  const { key, wrapped } = makeKey(keyring, backupContext(id))
  return { next: chainUnder(key), wrapped }
}

/** Begins the chain of MACs of an existing backup, to verify it. Throws MasterKeyMissing or IntegrityError. */
export function openChain (keyring: Keyring, { id, wrapped }: { id: string, wrapped: Buffer }): FrameChain {
  return chainUnder(takeKey(keyring.unwrap(wrapped, backupContext(id))))
}

function chainUnder (key: KeyObject): FrameChain {
  let last: Buffer = Buffer.alloc(32)
  return (...frame) => {
    last = hmac(key, last, ...frame)
    return last
  }
}
