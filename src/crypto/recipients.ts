// Encrypts and decrypts streams with age (https://age-encryption.org), in authenticated chunks of 64 KiB.

// @types/node has no type for `ReadableStream.from`.
interface Streams { from (chunks: AsyncIterable<Uint8Array>): ReadableStream<Uint8Array> }
const streamOf = (chunks: AsyncIterable<Uint8Array>) => (ReadableStream as unknown as Streams).from(chunks)

/** The first bytes of an age file. */
export const AGE = Buffer.from('age-encryption.org/v1\n')

const IDENTITY = /^\s*AGE-SECRET-KEY-/i

/** A recipient or an identity is invalid, or no identity matches the file. */
export class RecipientError extends Error {
  override readonly name = 'RecipientError'
}

export type Cipher = (chunks: AsyncIterable<Uint8Array>) => Promise<AsyncIterable<Uint8Array>>

/** Encrypts to each of the recipients (`age1…`). Throws a RecipientError for an invalid recipient. */
export async function encryptTo (recipients: readonly string[]): Promise<Cipher> {
  const { Encrypter } = await import('age-encryption')
  const encrypter = new Encrypter()
  for (const recipient of recipients) {
    try {
      encrypter.addRecipient(recipient)
    } catch {
      // Do not print the identity: logs often keep the standard error of a backup.
      if (IDENTITY.test(recipient)) throw new RecipientError('this is a secret identity; pass its recipient, which begins with age1')
      throw new RecipientError(`${JSON.stringify(recipient.slice(0, 80))} is not an age recipient`)
    }
  }
  return async (chunks) => encrypter.encrypt(streamOf(chunks))
}

/**
 * Decrypts with the identities in the output of `age-keygen`. Throws RecipientError if there is no identity, if an
 * identity is invalid, or if no identity matches the file. Error messages contain no part of an identity.
 */
export async function decryptWith (identities: string): Promise<Cipher> {
  const { Decrypter } = await import('age-encryption')
  const decrypter = new Decrypter()
  const lines = identities.split('\n').map((line) => line.trim()).filter((line) => line !== '' && !line.startsWith('#'))
  if (lines.length === 0) throw new RecipientError('the file contains no age identity')
  for (const [i, line] of lines.entries()) {
    try {
      decrypter.addIdentity(line)
    } catch {
      throw new RecipientError(`identity ${i + 1} of the file is not an age identity`)
    }
  }
  return async (chunks) => {
    try {
      return await decrypter.decrypt(streamOf(chunks))
    } catch (error) {
      if (/^no identity matched/.test((error as Error).message)) throw new RecipientError('no identity matches')
      throw error
    }
  }
}
