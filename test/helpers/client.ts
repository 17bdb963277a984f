import { deriveDataKey, generateSalt, makeProof } from '../../src/crypto/key-proof.ts'

export type ClientKey = Awaited<ReturnType<typeof clientKey>>

/**
 * What a client derives from its key string, and what it registers a project with. The fewest iterations that are
 * allowed.
 */
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
