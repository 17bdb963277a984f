// runs: both databases
import postgres from 'postgres'
import { ulid } from 'ulidx'
import t from 'tap'
import { verifyDatabase } from '../../src/commands/audit/audit.ts'
import { codeOf } from '../../src/db/database.ts'
import { Anchors } from '../../src/vault/audit/verification.ts'
import { startIsolatedApp } from '../helpers/app.ts'
import { readDoc } from '../helpers/docs.ts'
import { OPERATIONS, prepare, send, settle } from '../helpers/operations.ts'
import { ON_POSTGRES } from '../helpers/traffic.ts'
import { until } from '../helpers/until.ts'

// The statements of docs/operations/audit.md, exactly as operators run them.

const [GRANTS] = readDoc('docs/operations/audit.md').blocks('sql', 'Permissions')

t.test('AU-08: with a role that may only add events every operation works, and no event can be changed', {
  skip: !ON_POSTGRES && 'one user'
}, async (t) => {
  const role = `app_${ulid().toLowerCase()}`
  const owner = async (url: string, text: string) => {
    const client = postgres(url, { max: 1, onnotice: () => {} })
    await client.unsafe(text)
    await client.end()
  }
  t.teardown(() => owner(process.env.TEST_DATABASE_URL!, `DROP ROLE IF EXISTS ${role}`))
  // This test has its own database, because it connects with a new role, and verifies all chains.
  const service = await startIsolatedApp(t, {}, undefined, async (url) => {
    await owner(url, GRANTS!.replaceAll('strongroom_app', role))
    const address = new URL(url)
    address.username = role
    return address.href
  })
  t.match(await service.sql('SELECT current_user AS name'), [{ name: role }])
  await service.database.migrate()

  const { caller, ids, person } = await settle(service, 'permitted')
  for (const [id, row] of Object.entries(OPERATIONS)) {
    await prepare(service, row, ids)
    const bearer = row.byPerson ? person.access : caller.token
    const { status, text } = await send(service, row, ids, row.access === 'public' ? undefined : bearer)
    t.ok(status < 300 || status === row.public, `${id}: ${status} ${text.slice(0, 200)}`)
  }
  // A background job removes the remaining rows after a deletion.
  await until(async () => (await service.sql('SELECT FROM organization_removals')).length === 0, { within: 120_000 })

  for (const statement of [
    "UPDATE audit_events SET ip = '203.0.113.1'", 'DELETE FROM audit_events', 'TRUNCATE audit_events',
    'ALTER TABLE audit_events DISABLE TRIGGER USER', 'DROP TABLE audit_events', 'CREATE TABLE another (id int)'
  ]) {
    const error = await service.sql(statement).catch((error: unknown) => error)
    t.equal(codeOf(error), '42501', statement)
  }
  const { database, keyring } = service
  let events = 0
  for await (const verified of verifyDatabase({ database, keyring }, {}, new Anchors())) {
    t.equal(verified.broken, null)
    events += verified.events
  }
  t.ok(events > 50)
})
