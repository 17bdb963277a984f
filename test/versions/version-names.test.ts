// runs: one database, embedded
import t from 'tap'
import { sealBlob } from '../../src/crypto/blob.ts'
import { earlier, makeLevel, startApp, type Answer, type Caller } from '../helpers/app.ts'
import { clientKey } from '../helpers/client.ts'

// The names that a version changed.

const service = await startApp(t)
const owner = await service.organization()
const org = owner.organization

interface Place { project: string, target?: string, environment?: string }

const store = async (at: Place, plaintext: string, more: object = {}): Promise<string> => {
  const { status, body, text } = await owner.call('POST', `/${org}/secrets/store`, { ...at, plaintext, ...more })
  if (status !== 200) throw new Error(text)
  return body.data.version
}
const names = (version: string, { organization, call }: Caller = owner) =>
  call('GET', `/${organization}/secrets/versions/${version}/names`)
const changes = async (version: string) => {
  const { status, body, text } = await names(version)
  if (status !== 200) throw new Error(text)
  const { compared_with, added, changed, removed } = body.data.attributes
  return [compared_with, added, changed, removed]
}
const failing = ({ status, body }: Answer) => [status, body?.error]

t.test('a version says which names it added, changed and removed, without values', async (t) => {
  const at = await makeLevel(owner, { slug: 'told' })
  const first = await store(at, 'B=1\nA=1')
  const second = await store(at, 'A=planted\nC=1')
  const same = await store(at, 'A="planted"\nC=1\n')
  t.strictSame(await changes(first), [null, ['A', 'B'], [], []])
  t.strictSame(await changes(second), [first, ['C'], ['A'], ['B']])
  t.strictSame(await changes(same), [second, [], [], []], 'the same values in another form')
  const { body, text } = await names(second)
  t.strictSame([body.data.type, body.data.id], ['secret-version-names', second])
  t.notMatch(text, 'planted')

  await owner.call('POST', `/${org}/secrets/delete`, at)
  const versions = (await owner.call('POST', `/${org}/secrets/versions`, at)).body.data
  t.strictSame(await changes(versions[0].id), [null, [], [], ['A', 'C']], 'a deletion removes all names')
  t.strictSame(await changes(await store(at, 'D=1')), [null, ['D'], [], []], 'after it, all names are new')
  t.equal((await owner.call('POST', `/${org}/secrets/versions/${first}/restore`, {})).status, 200)
  const [restored, { id: before }] = (await owner.call('POST', `/${org}/secrets/versions`, at)).body.data
  t.strictSame(await changes(restored.id), [before, ['A', 'B'], [], ['D']])
  t.strictSame(failing(await names('999999')), [404, 'not_found'])
  t.strictSame(failing(await names('0')), [404, 'not_found'])
})

t.test('a rotation of the key changes no name', async (t) => {
  const at = await makeLevel(owner, { slug: 'rotated' })
  const first = await store(at, 'A=1')
  t.equal((await owner.call('POST', `/${org}/rotated/encryption-key/rotate`, {})).status, 200)
  const [rotated] = (await owner.call('POST', `/${org}/secrets/versions`, at)).body.data
  t.strictSame(await changes(rotated.id), [first, [], [], []])
})

t.test('versions that do not parse or are gone are skipped; without an older one, the lists are null', async (t) => {
  const at = await makeLevel(owner, { slug: 'gaps', secret_format: 'json' })
  const first = await store(at, '{"A":1}')
  const unreadable = await store(at, '{', { unchecked: true })
  const third = await store(at, '{"A":1,"B":[1]}')
  t.strictSame(await changes(third), [first, ['B'], [], []])
  t.strictSame(failing(await names(unreadable)), [422, 'document_unreadable'])
  await owner.call('DELETE', `/${org}/secrets/versions/${first}`)
  t.strictSame(await changes(third), [null, null, null, null])

  const other = await makeLevel(owner, { slug: 'gaps-2' })
  const began = await store(other, '{', { unchecked: true })
  const next = await store(other, 'A=1')
  t.strictSame(await changes(next), [null, null, null, null], 'what the document had at first cannot be known')
  t.ok(began)
})

t.test('the search for a version that can be read ends after counted work, not after a number of versions', async (t) => {
  const slow = `{${Array.from({ length: 4_900 }, (_, i) => `n${i}: 1`).join(', ')}`
  const wide = `${Array.from({ length: 15_000 }, (_, i) => `N${i}="${'x'.repeat(50)}"`).join('\n')}\nX="`
  const kinds = [['yaml', slow, 'A: 1', 'A: 2'], ['env', wide, 'A=1', 'A=2'], ['json', `{"A":[${'1,'.repeat(9_900)}`, '{}', '{"A":2}']]
  for (const [format, unreadable, first, last] of kinds as [string, string, string, string][]) {
    const compared = async (document: string, count: number) => {
      const at = await makeLevel(owner, { secret_format: format })
      const oldest = await store(at, first)
      for (let i = 0; i < count; i++) await store(at, `${document}${' '.repeat(i)}`, { unchecked: true })
      const [older] = await changes(await store(at, last))
      return older === oldest ? 'found' : older
    }
    t.equal(await compared(unreadable, 1), 'found', `${format}: one that does not parse`)
    t.equal(await compared(unreadable, 18), null, `${format}: many that take long`)
    t.equal(await compared(format === 'env' ? '"' : '{', 18), 'found', `${format}: many that are small`)
  }
})

t.test('versions outside of the retention are neither shown nor compared', async (t) => {
  const limited = await service.organization({ plan: 'free' })
  const at = await makeLevel(limited, { slug: 'kept' })
  const ids: string[] = []
  for (const plaintext of ['A=1', 'A=2']) {
    ids.push((await limited.call('POST', `/${limited.organization}/secrets/store`, { ...at, plaintext })).body.data.version)
  }
  await service.sql(`UPDATE secret_versions SET ${earlier('created_at', '8 days')}
    WHERE organization_id = '${limited.organization}' AND id = ${ids[0]}`)
  t.strictSame(failing(await names(ids[0]!, limited)), [403, 'version_locked'])
  t.match((await names(ids[1]!, limited)).body.data.attributes, { compared_with: null, added: null })
})

t.test('the names need secret:history and secret:decrypt at the level of the version', async (t) => {
  const at = await makeLevel(owner, { slug: 'guarded' })
  await owner.call('POST', `/${org}/guarded/backend/environments`, { name: 'Test' })
  const [here, there] = [await store(at, 'A=1'), await store({ ...at, environment: 'test' }, 'A=1')]
  for (const missing of ['secret:history', 'secret:decrypt'] as const) {
    const weak = await service.token(org, missing === 'secret:decrypt' ? ['secret:history'] : ['secret:decrypt'])
    const answer = await names(here, weak)
    t.strictSame([answer.status, answer.body.details.required_scope], [403, missing])
  }
  const [{ id: environment_id, target_id, project_id }] = await service.sql(`SELECT id, target_id, project_id
    FROM environments WHERE organization_id = '${org}' AND slug = 'live'
    AND project_id = (SELECT id FROM projects WHERE organization_id = '${org}' AND slug = 'guarded')`) as [any]
  const inside = await service.token(org, ['secret:history', 'secret:decrypt'], {
    slices: [{ project_id, target_id, environment_id }]
  })
  t.equal((await names(here, inside)).status, 200)
  t.strictSame(failing(await names(there, inside)), [404, 'not_found'])
})

t.test('a project without names that the server can read has none for versions', async (t) => {
  const text = await makeLevel(owner, { slug: 'plain', secret_format: 'text' })
  t.strictSame(failing(await names(await store(text, 'A=1'))), [422, 'invalid_parameter_combination'])
  const key = await clientKey('a key string of a client')
  const client = await makeLevel(owner, { slug: 'of-client', ...key.registration })
  const { body } = await owner.call('POST', `/${org}/secrets/store`, {
    ...client, content: sealBlob(key.dataKey, Buffer.from('A=1')), key_proof: key.proof
  })
  t.strictSame(failing(await names(body.data.version)), [422, 'client_managed_encryption'])
})

t.test('the event names the level and both versions', async (t) => {
  const at = await makeLevel(owner, { slug: 'told-on' })
  const first = await store(at, 'PLANTED=1')
  const second = await store(at, 'PLANTED=2')
  await names(second)
  const { body: { data: [event] } } = await owner.call('GET', `/${org}/audit-events?action=secret.names&per_page=1`)
  t.match(event.attributes, {
    resource: { type: 'environment' },
    details: { project: 'told-on', environment: 'live', version: Number(second), compared_with: first }
  })
  t.notMatch(JSON.stringify(event), 'PLANTED')
})
