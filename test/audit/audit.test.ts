// runs: one database
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setTimeout as pause } from 'node:timers/promises'
import t from 'tap'
import { systemOf } from '../../src/repositories/audit/audit.ts'
import { createReadRecorder } from '../../src/changes/change.ts'
import { makeLevel, ON_CITUS, startApp, type Caller } from '../helpers/app.ts'

// The audit events of reads. contract.test.ts checks that each operation records its declared events.

const service = await startApp(t)
const { db, kind } = service.database

const eventsOf = async ({ organization }: Pick<Caller, 'organization'>) => await service.sql(`
  SELECT seq::int, action, actor_type, actor_id::float8, resource_type, resource_id, request_id, user_agent, details
  FROM audit_events WHERE organization_id = '${organization}' ORDER BY seq`) as {
  seq: number
  action: string
  resource_id: string
  details: Record<string, unknown>
}[]
const countOf = async (caller: Caller, action: string) =>
  (await eventsOf(caller)).filter((event) => event.action === action).length

/**
 * Runs `body` (PL/pgSQL) before each insertion of an event. Sends separate commands, because Citus runs them on each
 * node.
 */
async function createTrigger (name: string, body: string) {
  await service.sql(`CREATE FUNCTION ${name} () RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN ${body} END $$`)
  await service.sql(`CREATE TRIGGER ${name} BEFORE INSERT ON audit_events FOR EACH ROW EXECUTE FUNCTION ${name}()`)
}
async function dropTrigger (name: string) {
  await service.sql(`DROP TRIGGER ${name} ON audit_events`)
  await service.sql(`DROP FUNCTION ${name}`)
}

/** The number of statements that write events while `work` runs. */
async function statementsOf (work: () => Promise<unknown>): Promise<number> {
  let count = 0
  const listen = (message: unknown) => {
    const { phase, text } = message as { phase: string, text: unknown }
    if (phase === 'before' && /INSERT INTO audit_events/.test(String(text))) count++
  }
  subscribe('strongroom:statement', listen)
  await work()
  unsubscribe('strongroom:statement', listen)
  return count
}

async function world () {
  const caller = await service.organization()
  const level = await makeLevel(caller, { slug: 'orbit' })
  const store = (more: object) =>
    caller.call('POST', `/${caller.organization}/secrets/store`, { project: 'orbit', ...more })
  const shared = (await store({ plaintext: 'TOKEN=planted-one' })).body.data
  const own = (await store({ ...level, plaintext: 'TOKEN=planted-two' })).body.data
  const url = `/${caller.organization}/orbit/backend/live/secrets`
  return { caller, level, shared, own, url, decrypt: () => caller.call('GET', `${url}?decrypt=true`) }
}

t.test('AU-01 AU-10: events of decrypting reads, fetched versions and keys say who and what, without content', async (t) => {
  const { caller, level, shared, own, url } = await world()
  const [{ environment }] = await service.sql(
    `SELECT id AS environment FROM environments WHERE organization_id = '${caller.organization}'`
  ) as [{ environment: string }]
  const before = (await eventsOf(caller)).length
  const read = await caller.call(
    'GET', `${url}?decrypt=true`, undefined, { 'x-request-id': 'read-1', 'user-agent': 'reader/1' }
  )
  t.match(read.text, 'planted-two')
  const retrieved = await caller.call(
    'POST', `/${caller.organization}/secrets/retrieve`,
    { ...level, action: 'decrypt', filters: { names: ['TOKEN'] }, merge: true, raw: true }
  )
  t.strictSame(retrieved.body, { TOKEN: 'planted-two' })
  await caller.call('GET', `/${caller.organization}/secrets/versions/${own.version}`)
  await caller.call('GET', `/${caller.organization}/orbit/encryption-key`)
  await caller.call('POST', `/${caller.organization}/secrets/retrieve`, { ...level, action: 'key:retrieve' })
  const events = (await eventsOf(caller)).slice(before)
  const details = { secrets: `${shared.secret_id} ${own.secret_id}`, revisions: '1 1' }
  t.match(events, [
    {
      action: 'secret.decrypt',
      actor_type: 'api_token',
      resource_type: 'environment',
      resource_id: environment,
      request_id: 'read-1',
      user_agent: 'reader/1',
      details
    },
    { action: 'secret.decrypt', resource_type: 'environment', resource_id: environment, details },
    {
      action: 'version.read',
      resource_type: 'secret',
      resource_id: own.secret_id,
      details: { version: Number(own.version), key_version: 1 }
    },
    { action: 'key.retrieve', resource_type: 'encryption-key', details: { version: 1 } },
    { action: 'key.retrieve', resource_type: 'encryption-key', details: { version: 1 } }
  ])
  t.equal(events.length, 5)
  t.notMatch(JSON.stringify(events), /planted|TOKEN/)
})

t.test('AU-02: an event has its actor, action, resource, time by the database’s clock, address and request', async (t) => {
  const { caller } = await world()
  const [{ id }] = await service.sql(
    `SELECT id::float8 AS id FROM api_tokens WHERE organization_id = '${caller.organization}'`
  ) as [{ id: number }]
  const { status, body } = await caller.call(
    'POST', `/${caller.organization}/projects`, { name: 'Comet' },
    { 'x-request-id': 'made-1', 'user-agent': `maker/${'1'.repeat(400)}` }
  )
  t.equal(status, 201)
  const events = await service.sql(`SELECT *, seq::int AS number, actor_id::float8 AS actor,
      abs(extract(epoch FROM occurred_at - now())) < 60 AS is_now
    FROM audit_events e WHERE organization_id = '${caller.organization}' ORDER BY e.seq`)
  t.match(events.at(-1), {
    number: events.length,
    is_now: true,
    action: 'project.create',
    actor_type: 'api_token',
    actor: id,
    resource_type: 'project',
    resource_id: body.data.id,
    request_id: 'made-1',
    ip: '127.0.0.1',
    user_agent: `maker/${'1'.repeat(250)}`,
    chain_kid: 'events',
    mac: { length: 32 }
  })
})

t.test('AU-01: what reveals nothing leaves nothing: an encrypted read, a 304, and a read that is refused', async (t) => {
  const { caller, url } = await world()
  const { headers } = await caller.call('GET', `${url}?decrypt=true`)
  const before = await eventsOf(caller)
  t.equal((await caller.call('GET', url)).status, 200)
  t.equal(
    (await caller.call('GET', `${url}?decrypt=true`, undefined, { 'if-none-match': headers.etag as string })).status,
    304
  )
  t.equal((await caller.call('GET', `${url}?merge=true`)).status, 422)
  t.equal((await caller.call('GET', `/${caller.organization}/orbit/none/secrets?decrypt=true`)).status, 404)
  t.equal(
    (await (await service.token(caller.organization, ['secret:read'])).call('GET', `${url}?decrypt=true`)).status, 403
  )
  t.strictSame(await eventsOf(caller), before)
})

t.test('AU-01: reads in one tick are recorded by one transaction, for all organizations concerned', async (t) => {
  const organizations = await Promise.all(Array.from({ length: 5 }, () => service.organization()))
  const record = createReadRecorder(db, 'on')
  const event = (i: number) => ({ action: 'version.read' as const, resource_type: 'secret', resource_id: String(i) })
  const statements = await statementsOf(() =>
    Promise.all(Array.from({ length: 100 }, (_, i) => record(systemOf(organizations[i % 5]!.organization), event(i)))))
  t.equal(statements, ON_CITUS ? organizations.length : 1, 'on Citus, a transaction is about one organization')
  for (const [i, one] of organizations.entries()) {
    const events = await eventsOf(one)
    t.strictSame(
      events.map(({ seq, resource_id }) => [seq, resource_id]),
      Array.from({ length: 20 }, (_, n) => [n + 1, String(5 * n + i)]), 'without a gap, in order'
    )
  }
  await t.rejects(
    record(systemOf('01ARZ3NDEKTSV4RRFFQ69G5FAV'), event(0)), { name: 'CallerEnded' },
    'of an organization that is gone nothing is answered'
  )
})

t.test('AU-01: events queued behind events that find no room are refused with them; the next is recorded', async (t) => {
  const { organization } = await service.organization()
  await createTrigger('no_room', `IF NEW.organization_id = '${organization}' THEN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END IF;
      RETURN NEW;`)
  const record = createReadRecorder(db, 'on')
  const event = { action: 'version.read' as const, resource_type: 'secret', resource_id: '1' }
  const outcomes: PromiseSettledResult<void>[] = []
  const statements = await statementsOf(async () => {
    outcomes.push(...await Promise.allSettled(Array.from({ length: 450 }, () => record(systemOf(organization), event))))
  })
  await dropTrigger('no_room')
  t.same([...new Set(outcomes.map((outcome) =>
    outcome.status === 'rejected' ? outcome.reason.name : outcome.status))], ['DatabaseUnavailable'])
  t.equal(statements, 1, 'no other queued event sends a statement')
  await record(systemOf(organization), event)
  t.equal((await eventsOf({ organization })).length, 1)
})

t.test('AU-04: concurrent reads and changes number the events of each organization without a gap, each once', async (t) => {
  const worlds = await Promise.all(Array.from({ length: 3 }, world))
  const answers = await Promise.all(Array.from({ length: 90 }, (_, i) => {
    const { caller, level, decrypt } = worlds[i % 3]!
    return i % 10 === 0
      ? caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: `TOKEN=${i}` })
      : decrypt()
  }))
  t.strictSame([...new Set(answers.map(({ status }) => status))], [200])
  for (const { caller } of worlds) {
    const events = await eventsOf(caller)
    t.strictSame(events.map(({ seq }) => seq), events.map((_, i) => i + 1))
    t.strictSame([await countOf(caller, 'secret.decrypt'), await countOf(caller, 'secret.store')], [27, 2 + 3])
  }
})

t.test('AU-01: only events of reads skip the wait for the disk; other statements of the connection do not', async (t) => {
  const { caller, level, decrypt } = await world()
  await createTrigger('tell_commit', 'NEW.details := jsonb_build_object(\'commit\', current_setting(\'synchronous_commit\')); RETURN NEW;')
  await Promise.all(Array.from({ length: 20 }, decrypt))
  await caller.call('POST', `/${caller.organization}/secrets/store`, { ...level, plaintext: 'TOKEN=again' })
  await caller.call('PATCH', `/${caller.organization}/orbit`, { name: 'Other' })
  await dropTrigger('tell_commit')
  const told = await service.sql(
    `SELECT DISTINCT action, details->>'commit' AS commit FROM audit_events WHERE organization_id = '${caller.organization}' AND details ? 'commit' ORDER BY 1`
  )
  t.strictSame([...told], [
    { action: 'project.update', commit: 'on' }, {
      action: 'secret.decrypt', commit: kind === 'embedded' ? 'on' : 'off'
    }, { action: 'secret.store', commit: 'on' }
  ])
  const settings = await Promise.all(Array.from({ length: 20 }, () =>
    service.sql("SELECT current_setting('synchronous_commit') AS commit")))
  t.strictSame([...new Set(settings.map(([row]) => row!.commit))], ['on'])
})

t.test('AU-01: a read that cannot be recorded is 503 for its organization, and for no other', async (t) => {
  const [one, two] = [await world(), await world()]
  await createTrigger('refuse_one', `IF NEW.organization_id = '${one.caller.organization}' THEN RAISE EXCEPTION 'not here'; END IF; RETURN NEW;`)
  const answers = await Promise.all([one, two, one, two, one, two].map(async ({ decrypt }) => await decrypt()))
  await dropTrigger('refuse_one')
  t.strictSame(
    answers.map(({ status, body }) => body.error ?? status),
    ['service_unavailable', 200, 'service_unavailable', 200, 'service_unavailable', 200]
  )
  for (const { text, status } of answers) if (status !== 200) t.notMatch(text, /planted/)
  t.strictSame([await countOf(one.caller, 'secret.decrypt'), await countOf(two.caller, 'secret.decrypt')], [0, 3])
  t.equal((await one.decrypt()).status, 200)
  t.strictSame(
    (await eventsOf(one.caller)).map(({ seq }) => seq), (await eventsOf(one.caller)).map((_, i) => i + 1),
    'and no number was lost'
  )
})

t.test('an organization whose events wait delays no other organization', {
  skip: kind === 'embedded' &&
  'one connection: the transaction with the lock uses it'
}, async (t) => {
  const [one, two] = [await world(), await world()]
  let settled = 0
  let release = () => {}
  const held = new Promise<void>((resolve) => { release = resolve })
  let isHeld = () => {}
  const ready = new Promise<void>((resolve) => { isHeld = resolve })
  const holding = service.app.db.transaction(async (tx) => {
    await tx.execute(
      `SELECT 1 FROM organization_counters WHERE organization_id = '${one.caller.organization}' FOR UPDATE`
    )
    isHeld()
    await held
  })
  await ready
  const waiting = Array.from({ length: 5 }, async () => {
    const answer = await one.decrypt()
    settled++
    return answer.status
  })
  t.strictSame(
    [(await two.decrypt()).status, (await two.decrypt()).status, settled], [200, 200, 0],
    'two answers, one after the other, while they wait'
  )
  release()
  await holding
  // On a very slow machine, some requests have waited too long and failed.
  const recorded = (await Promise.all(waiting)).filter((status) => status === 200).length
  t.strictSame(
    [await countOf(one.caller, 'secret.decrypt'), await countOf(two.caller, 'secret.decrypt')], [recorded, 2]
  )
})

t.test('AU-08: no statement can change or remove an event', async (t) => {
  const { caller } = await world()
  const of = `FROM audit_events WHERE organization_id = '${caller.organization}'`
  const before = await service.sql(`SELECT * ${of} ORDER BY seq`)
  for (const statement of [
    "UPDATE audit_events SET ip = '203.0.113.1'", 'UPDATE audit_events SET seq = seq + 1000', 'UPDATE audit_events SET mac = NULL',
    "UPDATE audit_events SET mac = '\\x00', chain_kid = 'other', action = 'user.update'",
    `DELETE ${of}`, 'TRUNCATE audit_events', 'TRUNCATE audit_events CASCADE',
    'INSERT INTO audit_events SELECT * FROM audit_events ON CONFLICT (organization_id, seq) DO UPDATE SET ip = NULL'
  ]) {
    await t.rejects(service.sql(statement), { cause: { code: '23000' } }, statement)
  }
  t.strictSame(await service.sql(`SELECT * ${of} ORDER BY seq`), before)
})

interface Listed {
  sequence: number
  occurred_at: string
  action: string
  actor: { type: string, id: number | null }
  resource: { type: string, id: string }
}

t.test('the list has each event once, newest first, on all pages, and by actor, action, resource and time', async (t) => {
  const { caller, own, decrypt } = await world()
  await decrypt()
  // The next events need a later millisecond.
  await pause(5)
  const before = new Date().toISOString()
  for (let i = 0; i < 3; i++) await decrypt()
  const list = async (query: string, status = 200) => {
    const answer = await caller.call('GET', `/${caller.organization}/audit-events${query}`)
    t.equal(answer.status, status, query)
    return {
      meta: answer.body.meta,
      all: (answer.body.data as { attributes: Listed }[] | undefined)?.map(({ attributes }) => attributes) ?? []
    }
  }
  const everything = (await eventsOf(caller)).map(({ seq }) => seq).reverse()
  const { all, meta } = await list('?per_page=100')
  t.strictSame(all.map(({ sequence }) => sequence), everything)
  t.match(meta, { total: everything.length, current_page: 1, from: 1, to: everything.length })
  t.match(all[0], { action: 'secret.decrypt', actor: { type: 'api_token' }, resource: { type: 'environment' }, details: { revisions: '1 1' } })
  const paged = await Promise.all([1, 2, 3].map((page) => list(`?page=${page}&per_page=3`)))
  t.strictSame(paged.flatMap((one) => one.all), all.slice(0, 9))
  t.strictSame((await list(`?before=${everything[3]}&per_page=2`)).all, all.slice(4, 6))
  t.match(await list('?page=1000000000'), { all: [], meta: { total: everything.length, from: null } })

  const decrypted = all.filter(({ action }) => action === 'secret.decrypt')
  t.strictSame((await list('?action=secret.decrypt')).all, decrypted)
  t.match((await list('?action=secret.decrypt&per_page=1&page=3')), { all: [decrypted[2]], meta: { total: 4, last_page: 4 } })
  t.strictSame((await list(`?before=${Number.MAX_SAFE_INTEGER}&per_page=100`)).all, all, 'the largest that is published')
  t.strictSame((await list(`?action=secret.decrypt&before=${decrypted[1]!.sequence}`)).all, decrypted.slice(2))
  t.strictSame((await list(`?resource=secret:${own.secret_id}`)).all, all.filter(({ resource }) => resource.id === own.secret_id))
  const { id } = all[0]!.actor as { id: number }
  t.strictSame((await list(`?actor=api_token:${id}&per_page=100`)).all, all)
  t.strictSame((await list('?actor=operator')).all, [])
  t.strictSame((await list(`?from=${before}`)).all, decrypted.slice(0, 3))
  t.strictSame((await list(`?to=${before}&per_page=100`)).all, all.slice(3))
  t.strictSame((await list(`?from=${before}&to=${before}`)).all, [])
  for (const bad of ['action=secret.sing', 'actor=somebody', 'actor=user:0', 'resource=secret', 'from=yesterday', 'before=0',
    'before=x', 'before=9007199254740993', 'before=99999999999999999', 'per_page=101', 'page=0', 'to=2026-12-31T23:59:60Z']) await list(`?${bad}`, 422)
})

t.test('every combination of filters lists exactly the matching events, newest first, with their number', async (t) => {
  const caller = await service.organization()
  const ACTIONS = ['secret.store', 'secret.decrypt', 'organization.update']
  const ACTORS = [['user', 1], ['user', 2], ['operator', null], ['system', null]] as const
  const RESOURCES = [['secret', 'FIRST'], ['secret', 'SECOND'], ['project', 'FIRST']] as const
  const moment = (second: number) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString()
  // Several events happen in each second, and not in the order of their numbers.
  const recorded = ACTIONS.flatMap((action, a) => ACTORS.flatMap(([type, id], b) => RESOURCES.flatMap(([kind, of], c) =>
    // Some combinations have no event, and some have two.
    Array.from({ length: (a + b + c) % 3 }, (_, i) =>
      ({ action, type, id, kind, of, at: moment((a * 7 + b * 3 + c * 5 + i * 2) % 11) })))))
  const [{ next }] = await service.sql(`SELECT coalesce((
    SELECT next_event FROM organization_counters WHERE organization_id = '${caller.organization}'), 1)::int AS next`
  ) as [{ next: number }]
  for (const [i, { action, type, id, kind, of, at }] of recorded.entries()) {
    await service.sql(`INSERT INTO audit_events
      (organization_id, seq, occurred_at, action, actor_type, actor_id, resource_type, resource_id, chain_kid, mac)
      VALUES ('${caller.organization}', ${next + i}, '${at}', '${action}', '${type}', ${id}, '${kind}', '${of}', 'events',
        '\\x00')`)
  }
  await service.sql(`UPDATE organization_counters SET next_event = ${next + recorded.length}
    WHERE organization_id = '${caller.organization}'`)
  const list = async (query: Record<string, string>) => {
    const { status, body } = await caller.call(
      'GET', `/${caller.organization}/audit-events?${new URLSearchParams(query).toString()}`)
    t.equal(status, 200)
    return {
      total: (body.meta as { total: number }).total,
      events: (body.data as { attributes: Listed }[]).map(({ attributes }) => attributes)
    }
  }
  const whole = (await list({ per_page: '100' })).events
  t.equal(whole.length, next - 1 + recorded.length)
  const newest = whole.toSorted((one, other) =>
    other.occurred_at.localeCompare(one.occurred_at) || other.sequence - one.sequence)
  const cursor = newest[Math.floor(newest.length / 2)]!

  const among = (name: string, ...values: (string | undefined)[]) =>
    values.map((value): Record<string, string> => value === undefined ? {} : { [name]: value })
  const queries = among('action', undefined, 'secret.store', 'secret.decrypt', 'team.create').flatMap((action) =>
    among('actor', undefined, 'user:1', 'operator', 'user:9').flatMap((actor) =>
      among('resource', undefined, 'secret:FIRST', 'project:FIRST', 'secret:NONE').flatMap((resource) =>
        among('from', undefined, moment(3)).flatMap((from) => among('to', undefined, moment(8)).flatMap((to) =>
          among('before', undefined, String(cursor.sequence)).map((before) =>
            ({ ...action, ...actor, ...resource, ...from, ...to, ...before })))))))
  let found = 0
  for (const query of queries) {
    const { action, actor, resource, from, to, before } = query
    // A list without a filter is in the order of the numbers.
    const isFiltered = Object.keys(query).some((name) => name !== 'before')
    const ordered = isFiltered ? newest : whole
    const expected = ordered.slice(before === undefined ? 0 : ordered.indexOf(cursor) + 1).filter((event) =>
      (action === undefined || event.action === action) &&
      (actor === undefined || actor === [event.actor.type, event.actor.id ?? []].flat().join(':')) &&
      (resource === undefined || resource === `${event.resource.type}:${event.resource.id}`) &&
      (from === undefined || event.occurred_at >= from) && (to === undefined || event.occurred_at < to))
    found += expected.length
    t.strictSame(await list({ ...query, per_page: '100' }), { total: expected.length, events: expected }, JSON.stringify(query))
    t.strictSame(await list({ ...query, page: '2', per_page: '2' }),
      { total: expected.length, events: expected.slice(2, 4) }, `${JSON.stringify(query)}, its second page`)
  }
  t.ok(found > 500, 'most combinations match events')
})

t.test('TI-17: the list is empty for a narrowed token, and shows no token events of another organization', async (t) => {
  const { caller } = await world()
  const [{ project }] = await service.sql(
    `SELECT id AS project FROM projects WHERE organization_id = '${caller.organization}'`
  ) as [{ project: string }]
  const narrowed = await service.token(caller.organization, ['*'], {
    slices: [{ project_id: project, target_id: null, environment_id: null }]
  })
  t.match((await narrowed.call('GET', `/${caller.organization}/audit-events`)).body, { data: [], meta: { total: 0 } })
  const other = await service.organization()
  t.match((await other.call('GET', `/${other.organization}/audit-events`)).body, { data: [], meta: { total: 0 } })
  t.equal((await other.call('GET', `/${caller.organization}/audit-events`)).status, 404)
})
