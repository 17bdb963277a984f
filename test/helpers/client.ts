import { deriveDataKey, generateSalt, makeProof } from '../../src/crypto/key-proof.ts'

export type ClientKey = Awaited<ReturnType<typeof clientKey>>

/** Derives a client's keys from a key string, with the minimum of iterations, and the fields that register the key. */
export async function clientKey (keyString: string) {
  const salt = generateSalt()
  const proof = await makeProof(keyString, salt, 1000)
  return {
    dataKey: await deriveDataKey(keyString, salt, 1000),
    proof,
    salt,
    registration: {
      storage_mode: 'client', key_check: proof, key_check_salt: salt.toString('base64'), key_check_iterations: 1000
    }
  }
}
