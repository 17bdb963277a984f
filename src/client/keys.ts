// Keys and blobs of client-managed projects (docs/encryption.md, "Writing a client"), for the console and the command
// line client. The key string and the data key stay in the process. WebCrypto derives off the main thread.

/** The parameters of a key derivation, as the service stores them. */
export interface Derivation { salt: string, iterations: number }

type DataKey = Awaited<ReturnType<typeof crypto.subtle.importKey>>

/** A key of a client-managed project. The key string itself is not kept. */
export interface ClientKey extends Derivation { key: DataKey, proof: string }

const ITERATIONS = 600_000

/** The fields with which a project registers a key. */
export const checkOf = ({ proof, salt, iterations }: ClientKey) =>
  ({ key_check: proof, key_check_salt: salt, key_check_iterations: iterations })

type Bytes = Uint8Array<ArrayBuffer>

export const bytesOf = (base64: string): Bytes => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0))

export function base64Of (bytes: Uint8Array): string {
  let text = ''
  for (const byte of bytes) text += String.fromCharCode(byte)
  return btoa(text)
}

/** A key string with 256 random bits, which is not 32 bytes long. */
export const newKeyString = (): string =>
  [...crypto.getRandomValues(new Uint8Array(32))].map((byte) => byte.toString(16).padStart(2, '0')).join('')

async function pbkdf2 (password: Bytes, { salt, iterations }: Derivation): Promise<Bytes> {
  const key = await crypto.subtle.importKey('raw', password, 'PBKDF2', false, ['deriveBits'])
  const bits = await crypto.subtle.deriveBits({ name: 'PBKDF2', hash: 'SHA-256', salt: bytesOf(salt), iterations }, key, 256)
  return new Uint8Array(bits)
}

/** Derives the data key and the key proof. Throws an error with a sentence for people. */
export async function deriveKey (keyString: string, derivation: Derivation): Promise<ClientKey> {
  if (derivation.iterations < ITERATIONS) {
    throw new Error(`The service names only ${derivation.iterations} iterations. A guess would be cheap, so the key is not derived.`)
  }
  const password = new TextEncoder().encode(keyString)
  if (password.length < 16) throw new Error('A key string has at least 16 characters.')
  if (password.length === 32) throw new Error('A key string does not have 32 bytes, because its proof would be its data key. Use another length.')
  const padded = new Uint8Array(32).fill(0x30)
  padded.set(password.subarray(0, 32))
  const [key, proof] = await Promise.all([pbkdf2(password, derivation), pbkdf2(padded, derivation)])
  return {
    ...derivation,
    key: await crypto.subtle.importKey('raw', key, 'AES-GCM', false, ['encrypt', 'decrypt']),
    proof: base64Of(proof)
  }
}

/** Derives a new key of a key string. */
export const newKey = async (keyString: string): Promise<ClientKey> =>
  deriveKey(keyString, { salt: base64Of(crypto.getRandomValues(new Uint8Array(16))), iterations: ITERATIONS })

/** Decrypts a blob to text with all its bytes. Throws an error with a sentence for people. */
export async function openBlob ({ key }: ClientKey, blob: string): Promise<string> {
  const bytes = bytesOf(blob)
  try {
    const plain = await crypto.subtle.decrypt({ name: 'AES-GCM', iv: bytes.subarray(0, 12) }, key, bytes.subarray(12))
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(plain)
  } catch {
    throw new Error('The key does not decrypt this document. The document may be encrypted with an older key.')
  }
}

export async function sealBlob ({ key }: ClientKey, text: string): Promise<string> {
  const iv = crypto.getRandomValues(new Uint8Array(12))
  const sealed = await crypto.subtle.encrypt({ name: 'AES-GCM', iv }, key, new TextEncoder().encode(text))
  const blob = new Uint8Array(12 + sealed.byteLength)
  blob.set(iv)
  blob.set(new Uint8Array(sealed), 12)
  return base64Of(blob)
}
