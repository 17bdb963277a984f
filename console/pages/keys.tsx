import { useState } from 'preact/hooks'
import { call } from '../api.ts'
import { checkOf, deriveKey, newKey, openBlob, sealBlob, type ClientKey } from '../../src/client/keys.ts'
import { heldKey, holdKey } from '../held-keys.ts'
import { projectPath, type Level } from '../levels.ts'
import { KeyGate, NewKeyString, Secret, storedDocuments, type At } from '../secrets.tsx'
import { Act, changed, Check, Danger, Field, Form, Help, saying, Section, Show, Table, Time, useLoad, type Fields } from '../ui.tsx'

type Policy = 'keep' | 're_encrypt'

export const KeysPage = ({ level, project }: At) => (
  <>
    <Help text='Each project has a key that encrypts its documents. Either the server holds it, or only your own people do.' />
    <p>
      {project.isClient
        ? 'Only your own people hold the key of this project. The server cannot read its secrets.'
        : 'The server holds the key of this project, and decrypts for people and tokens with permission.'}
    </p>
    <KeyList level={level} />
    {project.isClient
      ? <KeyGate {...{ level, project }}><Rotate level={level} isClient /><ToServer level={level} /></KeyGate>
      : <><KeyString level={level} /><Rotate level={level} /><ToClient level={level} /></>}
  </>
)

function KeyList ({ level }: { level: Level }) {
  const keys = useLoad(async () => (await call('listEncryptionKeys', { path: level })).data, [])
  return (
    <Show of={keys}>
      {({ data, re_encryption }) => (
        <Section title='Versions of the key'>
          <Table
            label='Versions of the key' head={['Version', 'Held by', 'In use', 'Made', 'Replaced']}
            rows={data.map(({ version, managed, is_active, created_at, rotated_at }) => [
              String(version), version, managed === 'client' ? 'your people' : 'the server', is_active ? 'yes' : 'no',
              <Time at={created_at} />, rotated_at === null ? '' : <Time at={rotated_at} />
            ])}
          />
          {re_encryption !== null && (
            <>
              <p>
                <label>
                  Encrypting the history again: {re_encryption.moved} of {re_encryption.total} versions.{' '}
                  <progress max={re_encryption.total || 1} value={re_encryption.moved} />
                </label>
              </p>
              <Act name='key.refresh' run={keys.reload} />
            </>
          )}
        </Section>
      )}
    </Show>
  )
}

const KeyString = ({ level }: { level: Level }) => (
  <Section title='Key string'>
    <p>Whoever has it can decrypt every document of the project without the server. Each look is in the audit log.</p>
    <Secret
      source={`key of ${projectPath(level)}`} name='key string'
      read={async () => (await call('getEncryptionKey', { path: level })).data.data.attributes.key ?? ''}
    />
  </Section>
)

function Rotate ({ level, isClient = false }: { level: Level, isClient?: boolean }) {
  const [progress, setProgress] = useState('')
  const rotate = async ({ key_string = '', ...fields }: Fields) => {
    const policy = fields.history_policy as Policy
    const body = { history_policy: policy }
    await (isClient
      ? rotateInBrowser(level, key_string, policy, setProgress)
      : saying(call('rotateEncryptionKey', { path: level, body, dangerous: ['key:rotate'] })))
    setProgress('')
  }
  return (
    <Section title='Rotate the key' of='key.rotate'>
      <Help text='A rotation makes a new key and encrypts all current documents with it. The old key still opens old copies.' />
      <Form name='key.rotate' kind='danger' run={rotate}>
        {isClient && <NewKeyString label='New key string' />}
        <Field
          label='Old versions' name='history_policy'
          options={[['keep', 'Stay under the old key'], ['re_encrypt', 'Are encrypted again with the new key']]}
        />
        <Check name='sure' label={isClient ? 'I have kept the key string' : 'Replace the key of this project'} required />
      </Form>
      {progress !== '' && <p role='status'>{progress}</p>}
    </Section>
  )
}

/** Encrypts all documents with a new key, and the history too if the person wants that. */
async function rotateInBrowser (level: Level, keyString: string, policy: Policy, tell: (text: string) => void) {
  const old = heldKey(projectPath(level))
  tell('Deriving the new key…')
  const key = await newKey(keyString)
  const secrets = []
  for await (const { id, content, etag } of storedDocuments(level)) {
    secrets.push({ id, etag, content: await sealBlob(key, await openBlob(old, content)) })
    tell(`Encrypted ${secrets.length} documents…`)
  }
  const { data } = await call('rotateClientKeys', {
    path: level,
    body: { secrets, ...checkOf(key), key_proof: old.proof, history_policy: policy },
    dangerous: ['key:rotate']
  })
  holdKey(projectPath(level), key)
  if (policy === 're_encrypt') await reEncrypt(level, old, key, tell)
  changed(data.message)
}

async function reEncrypt (level: Level, old: ClientKey, key: ClientKey, tell: (text: string) => void) {
  for (let after = 0, done = 0; ;) {
    const { data } = await call('listPendingVersions', { path: level, body: { limit: 50, after }, dangerous: ['key:rotate'] })
    if (data.data.length === 0) return
    const versions = []
    for (const { id, content } of data.data) {
      after = id
      // A version under an even older key stays as it is.
      const text = await openBlob(old, content).catch(() => undefined)
      if (text !== undefined) versions.push({ id, content: await sealBlob(key, text) })
    }
    if (versions.length > 0) {
      await call('reEncryptHistory', { path: level, body: { versions, key_proof: key.proof }, dangerous: ['key:rotate'] })
    }
    done += versions.length
    tell(`Encrypted ${done} versions again…`)
  }
}

function ToServer ({ level }: { level: Level }) {
  const change = async ({ encryption_key = '' }: Fields) => saying(
    call('updateProject', { path: level, body: { storage_mode: 'server', encryption_key }, dangerous: ['key:rotate'] }),
    'The server holds the key now.'
  )
  return (
    <Section title='Give the key to the server' of='key.custody'>
      <p>From then on, the server can read the documents and their history, and decrypts for people with permission.</p>
      <Form name='key.custody' kind='danger' run={change}>
        <Field label='Present key string' name='encryption_key' type='password' required />
      </Form>
    </Section>
  )
}

/** Takes the key from the server, which has known the key until then. */
function ToClient ({ level }: { level: Level }) {
  const change = async () => {
    const { data: { data: { attributes } } } = await call('getEncryptionKey', { path: level })
    const { key = '', key_check_salt, key_check_iterations } = attributes
    const derived = await deriveKey(key, { salt: key_check_salt, iterations: key_check_iterations })
    await call('updateProject', {
      path: level,
      body: { storage_mode: 'client', ...checkOf(derived), key_proof: derived.proof },
      dangerous: ['key:rotate']
    })
    holdKey(projectPath(level), derived)
    changed('Only your people hold the key now. Rotate it to a key that the server has never seen.')
  }
  return (
    <Section title='Take the key from the server' of='key.custody'>
      <Danger name='key.custody' title='Take the key from the server?' run={change}>
        <p>
          Copy the key string above to a safe place first: the server deletes it, and without it nobody can read the
          secrets. Then rotate the key, because the server once knew it.
        </p>
      </Danger>
    </Section>
  )
}
