// Reads or writes one document. The key string, the data key and the plaintext stay in this process.
//   read orbit/backend/live             prints the document
//   write orbit/backend/live < .env     stores standard input
// Environment: STRONGROOM_URL, STRONGROOM_TOKEN, STRONGROOM_ORGANIZATION; for a client-managed project also
// STRONGROOM_KEY.
import { createCipheriv, createDecipheriv, pbkdf2Sync, randomBytes } from 'node:crypto'
import { buffer } from 'node:stream/consumers'

const {
  STRONGROOM_URL: url, STRONGROOM_TOKEN: token, STRONGROOM_ORGANIZATION: organization, STRONGROOM_KEY: ownKey
} = process.env
const [action, path = ''] = process.argv.slice(2)
const [project = '', target, environment] = path.split('/')
const level = environment ? 'environment' : target ? 'target' : 'project'

async function call (path: string, headers: Record<string, string> = {}, body?: object): Promise<any> {
  const response = await fetch(`${url}/api/v1/${organization}/${path}`, {
    headers: { authorization: `Bearer ${token}`, ...headers, ...(body && { 'content-type': 'application/json' }) },
    ...(body && { method: 'POST', body: JSON.stringify(body) })
  })
  const answer: any = await response.json()
  if (!response.ok) throw new Error(`${response.status} ${answer.error}: ${answer.message}`)
  return answer.data
}

const { attributes: key } = await call(`${project}/encryption-key`)
const keyBytes = Buffer.from(ownKey || key.key || '')
if (keyBytes.length === 0) throw new Error('The project is client-managed: set STRONGROOM_KEY')
if (ownKey && keyBytes.length === 32) {
  throw new Error('The proof of a key string of 32 bytes is its data key: use another length')
}
if (key.key_check_iterations < 600_000) throw new Error('The server names too few iterations')
const derive = (password: Buffer) =>
  pbkdf2Sync(password, Buffer.from(key.key_check_salt, 'base64'), key.key_check_iterations, 32, 'sha256')
const dataKey = derive(keyBytes)

function open (blob: string): Buffer {
  const bytes = Buffer.from(blob, 'base64')
  const decipher = createDecipheriv(
    'aes-256-gcm', dataKey, bytes.subarray(0, 12), { authTagLength: 16 }
  ).setAuthTag(bytes.subarray(-16))
  return Buffer.concat([decipher.update(bytes.subarray(12, -16)), decipher.final()])
}

function seal (document: Buffer): string {
  const iv = randomBytes(12)
  const cipher = createCipheriv('aes-256-gcm', dataKey, iv)
  return Buffer.concat([iv, cipher.update(document), cipher.final(), cipher.getAuthTag()]).toString('base64')
}

// Also decrypts before a write: a wrong key fails here, before anything is stored under it.
const stored = (await call(`${path}/secrets`)).attributes.levels[level]
const document = stored && open(stored.content)
if (action === 'read') process.stdout.write(document ?? '')
else if (action === 'write') {
  const proof = ownKey && derive(Buffer.concat([keyBytes, Buffer.alloc(32, '0')]).subarray(0, 32)).toString('base64')
  const expected: Record<string, string> = stored ? { 'if-match': stored.etag } : { 'if-none-match': '*' }
  const content = seal(await buffer(process.stdin))
  const { version } = await call(
    'secrets/store', expected, { project, target, environment, content, ...(proof && { key_proof: proof }) }
  )
  console.log(`version ${version}`)
} else throw new Error('Say read or write')
