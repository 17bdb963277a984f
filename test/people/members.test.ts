// runs: one database
import t from 'tap'
import { SCOPE_NAMES, type Scope } from '../../schemas/scopes.ts'
import { ROLES, type Role } from '../../schemas/users.ts'
import { switchClient } from '../../src/commands/people/clients.ts'
import { addUser, describeUsers, mailLink, renewLink, switchUser } from '../../src/commands/people/users.ts'
import { loadConfig } from '../../src/config.ts'
import { scopesOfRole } from '../../src/rules/roles.ts'
import { makeLevel, ON_CITUS, startApp, type Answer, type TestApp } from '../helpers/app.ts'
import { LONG, sample } from '../helpers/long.ts'
import { OPERATIONS, send, settle } from '../helpers/operations.ts'
import { crowd, issuePair, join, makePerson, type Person } from '../helpers/people.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

const service = await startApp(t)
const address = await service.listen()
const failing = ({ status, body }: Answer) => [status, body?.error]

const bearer = (token: string, on: TestApp = service) =>
  (method: string, path: string, payload?: unknown): Promise<Answer> => on.inject({
    method: method as 'GET',
    url: `/api/v1${path}`,
    headers: { authorization: `Bearer ${token}` },
    ...(payload !== undefined && { payload: payload as object })
  })
type Call = ReturnType<typeof bearer>
const as = async (person: Person, scopes: readonly Scope[] = SCOPE_NAMES, on: TestApp = service): Promise<Call> =>
  bearer((await issuePair(on, person, scopes)).access, on)

let newcomers = 0
const newcomer = () => `newcomer-${++newcomers}@nimbus.example`
const rolesIn = async (organization: string) => (await service.sql(
  `SELECT user_id, role FROM members WHERE organization_id = '${organization}' AND status = 'active'`
)) as { user_id: string, role: Role }[]

const lastEvent = async (organization: string) => (await service.sql(
  `SELECT action, details FROM audit_events WHERE organization_id = '${organization}' ORDER BY seq DESC LIMIT 1`
))[0]

/** An organization with an owner, and the path of its members. */
async function nimbus (plan?: string) {
  const caller = await service.organization(plan === undefined ? {} : { plan })
  const o = caller.organization
  const owner = await makePerson(service, { [o]: 'owner' })
  return { ...caller, o, owner, path: `/organizations/${o}/members`, call: await as(owner) }
}

t.test('members are listed, changed and removed', async (t) => {
  const { o, path, call, owner } = await nimbus()
  const rosa = await makePerson(service)
  await join(service, call, o, rosa, 'admin')
  const member = {
    type: 'members',
    id: String(rosa.id),
    attributes: {
      user_id: rosa.id, email: rosa.email, name: rosa.name, role: 'administrator', status: 'active', joined_at: String
    }
  }
  t.match((await call('GET', `${path}/${rosa.id}`)).body.data, member)
  const list = (await call('GET', path)).body
  t.strictSame(list.data.map(({ id }: { id: string }) => id), [owner.id, rosa.id].map(String))
  t.match(list.meta, { total: 2, current_page: 1 })
  t.match((await call('GET', `${path}?page=2&per_page=1`)).body, { data: [{ id: String(rosa.id) }], meta: { total: 2 } })
  t.match((await call('GET', `${path}?page=9`)).body, { data: [], meta: { total: 2, from: null } })

  const theirs = await as(rosa)
  t.equal((await theirs('GET', `/${o}/projects`)).status, 200)
  t.match((await theirs('GET', '/user')).body.included, [{ id: o, attributes: { role: 'administrator' } }])
  t.match(await call('PATCH', `${path}/${rosa.id}`, { role: 'auditor' }), {
    status: 200, body: { data: { id: String(rosa.id), attributes: { role: 'auditor' } } }
  })
  t.match((await theirs('GET', '/user')).body.included, [{ attributes: { role: 'auditor' } }])
  t.equal((await call('DELETE', `${path}/${rosa.id}`)).status, 204)
  t.equal((await call('GET', `${path}/${rosa.id}`)).status, 404)
  t.strictSame((await theirs('GET', '/user')).body.included, [])
  t.strictSame((await service.sql(
    `SELECT action, details FROM audit_events WHERE organization_id = '${o}' AND resource_type = 'member' ORDER BY seq`
  )).map(({ action, details }) => [action, { ...details as object, invitation: undefined }]), [
    ['member.join', { role: 'administrator', invitation: undefined }],
    ['member.update', { from: 'administrator', to: 'auditor', invitation: undefined }],
    ['member.delete', { role: 'auditor', invitation: undefined }]
  ])
})

t.test('what is no member, no address and no role is refused, and nothing is changed', async (t) => {
  const { o, path, call, owner } = await nimbus()
  const [member, stranger] = [await makePerson(service, { [o]: 'member' }), await makePerson(service)]
  const cases: [method: string, path: string, body: unknown, expected: unknown[]][] = [
    ['POST', path, { email: member.email, role: 'member' }, [422, 'already_member']],
    ['POST', path, { email: ` ${owner.email}`, role: 'member' }, [422, 'validation_failed']],
    ['POST', path, { email: stranger.email, role: 'Owner' }, [422, 'validation_failed']],
    ['POST', path, { email: stranger.email, role: 'root' }, [422, 'validation_failed']],
    ['POST', path, { email: stranger.email }, [422, 'validation_failed']],
    ['POST', path, { role: 'member' }, [422, 'validation_failed']],
    ['POST', path, { email: stranger.email, role: 'member', status: 'active' }, [422, 'validation_failed']],
    ['POST', path, { email: [stranger.email], role: 'member' }, [422, 'validation_failed']],
    ...['', 'rosa', '@nimbus.example', 'rosa@', 'rosa @nimbus.example', 'rosa@nimbus\u0000.example', 'a@b\r\nBcc: c@d',
      `${'a'.repeat(320)}@nimbus.example`, `${'\ufdfa'.repeat(20)}@nimbus.example`,
      // Each of these addresses would reach Rosa, but the service would count it as another address.
      '<rosa@nimbus.example>', 'x<rosa@nimbus.example>', '"rosa"@nimbus.example', 'rosa(x)@nimbus.example',
      'rosa@nimbus.example(x)', 'rosa@nimbus.example,', 'rosa@nimbus.example;', 'team:rosa@nimbus.example',
      'ros\\a@nimbus.example', 'rosa@[127.0.0.1]', 'rosa@nimbus.example.', 'rosa@nimbus\u3002example',
      'rosa@nimbus\uff0eexample', 'rosa@nimbus\uff61example'].map((email): typeof cases[number] =>
      ['POST', path, { email, role: 'member' }, [422, 'validation_failed']]),
    ['PATCH', `${path}/${member.id}`, { role: 'nobody' }, [422, 'validation_failed']],
    ['PATCH', `${path}/${member.id}`, {}, [422, 'validation_failed']],
    ['PATCH', `${path}/${member.id}`, { role: 'member', status: 'invited' }, [422, 'validation_failed']],
    ...['0', '-1', '1e3', 'rosa', '00042', String(stranger.id), '9007199254740993'].flatMap((id): typeof cases => [
      ['GET', `${path}/${id}`, undefined, [404, 'not_found']],
      ['PATCH', `${path}/${id}`, { role: 'member' }, [404, 'not_found']],
      ['DELETE', `${path}/${id}`, undefined, [404, 'not_found']]
    ])
  ]
  const before = await service.sql('SELECT md5(string_agg(m::text, \'\' ORDER BY m::text)) AS sum FROM members m')
  for (const [method, url, body, expected] of cases) {
    const answer = await call(method, url, body)
    t.strictSame(failing(answer), expected, `${method} ${url} ${JSON.stringify(body)}: ${answer.text}`)
  }
  t.same(await service.sql('SELECT md5(string_agg(m::text, \'\' ORDER BY m::text)) AS sum FROM members m'), before)
})

t.test('TI-13: a removed member is no member, on any route', async (t) => {
  const { caller, ids } = await settle(service, 'ours')
  const o = caller.organization
  const person = await makePerson(service, { [o]: 'owner' })
  const { access } = await issuePair(service, person, SCOPE_NAMES)
  const where = `organization_id = '${o}' AND user_id = ${person.id}`
  const states = {
    removed: () => service.sql(`DELETE FROM members WHERE ${where}`)
  }
  t.equal((await send(service, OPERATIONS.listProjects!, ids, access)).status, 200, 'an active one is')
  for (const [state, enter] of Object.entries(states)) {
    await enter()
    for (const [id, row] of Object.entries(OPERATIONS)) {
      if (!row.at.includes('{organization}')) continue
      t.strictSame(failing(await send(service, row, ids, access)), [404, 'not_found'], `${id} when ${state}`)
    }
    t.same((await bearer(access)('GET', '/user')).body.included, [])
    t.same((await bearer(access)('GET', '/organizations')).body.data, [])
  }
})

t.test('TI-33: no caller gives, changes or takes away a role with more permissions than their own', async (t) => {
  const { o, path } = await nimbus()
  const covers = (held: readonly Scope[], role: Role) => scopesOfRole(role).every((scope) => held.includes(scope))
  const actors: [name: string, held: readonly Scope[], call: Call][] = []
  for (const role of ROLES) {
    actors.push([role, scopesOfRole(role), await as(await makePerson(service, { [o]: role }))])
  }
  const some: Scope[] = ['member:create', 'member:update', 'member:delete', ...scopesOfRole('member')]
  actors.push(['an owner through an application that was granted less', some,
    await as(await makePerson(service, { [o]: 'owner' }), some)])
  actors.push(['a token without a person, with some scopes', some, bearer((await service.token(o, some)).token)])
  let cells = 0
  for (const [name, held, call] of actors) {
    for (const role of ROLES) {
      const expected = (scope: Scope) => !held.includes(scope) ? 403 : covers(held, role) ? [200, 201, 204] : 422
      const subject = await makePerson(service, { [o]: role })
      const weak = await makePerson(service, { [o]: 'api_user' })
      const tries: [Scope, Answer][] = [
        ['member:create', await call('POST', path, { email: (await makePerson(service)).email, role })],
        ['member:update', await call('PATCH', `${path}/${weak.id}`, { role })],
        ['member:update', await call('PATCH', `${path}/${subject.id}`, { role: 'api_user' })],
        ['member:delete', await call('DELETE', `${path}/${(await makePerson(service, { [o]: role })).id}`)]
      ]
      for (const [scope, answer] of tries) {
        cells++
        t.ok([expected(scope)].flat().includes(answer.status), `${name}: ${scope} ${role}: ${answer.text}`)
        if (answer.status === 422) t.equal(answer.body.error, 'role_not_held')
      }
    }
  }
  t.ok(cells >= 250, `${cells} tries`)
  const { project } = await makeLevel(await service.token(o, ['*']))
  const [row] = await service.sql(`SELECT id FROM projects WHERE organization_id = '${o}' AND slug = '${project}'`)
  const narrowed = await service.token(o, ['*'], {
    slices: [{ project_id: row!.id as string, target_id: null, environment_id: null }]
  })
  const member = `${path}/${(await makePerson(service, { [o]: 'member' })).id}`
  for (const [method, url, body] of [
    ['GET', path], ['GET', member], ['POST', path, { email: newcomer(), role: 'api_user' }],
    ['PATCH', member, { role: 'api_user' }], ['DELETE', member]
  ] as const) {
    t.strictSame(
      failing(await narrowed.call(method, url, body)), [404, 'not_found'],
      `TI-35: of people, who are the whole’s, what is narrowed to a part learns and changes nothing: ${method}`
    )
  }
})

t.test('the last owner stays: they do not leave, and are not demoted or removed', async (t) => {
  const { o, path, call, owner } = await nimbus()
  const lastOwner = async () => {
    for (const [method, body] of [['DELETE'], ['PATCH', { role: 'member' }]] as const) {
      t.strictSame(failing(await call(method, `${path}/${owner.id}`, body)), [422, 'last_owner'], method)
    }
  }
  await lastOwner()
  t.equal((await call('PATCH', `${path}/${owner.id}`, { role: 'owner' })).status, 200, 'to stay what one is')
  await call('POST', path, { email: newcomer(), role: 'owner' })
  await lastOwner()
  const closed = await makePerson(service, { [o]: 'owner' })
  await switchUser(service.database, closed.email, true)
  await lastOwner()
  await makePerson(service, { [o]: 'owner' })
  t.equal((await call('DELETE', `${path}/${owner.id}`)).status, 204, 'with another one they leave')
})

t.test('two owners who demote or remove each other at once leave one, however often', async (t) => {
  const { o, path, owner, call } = await nimbus()
  const other = await makePerson(service, { [o]: 'owner' })
  const theirs = await as(other)
  for (let round = 0; round < (LONG ? 100 : 20); round++) {
    const removes = round % 4 === 3
    const act = (who: Call, whom: Person) => removes
      ? who('DELETE', `${path}/${whom.id}`)
      : who('PATCH', `${path}/${whom.id}`, { role: 'member' })
    const answers = await Promise.all([act(call, other), act(theirs, owner)])
    const owners = (await rolesIn(o)).filter(({ role }) => role === 'owner')
    if (owners.length !== 1 || answers.filter(({ status }) => status < 300).length !== 1) {
      t.fail(`round ${round}: ${owners.length} owners, ${answers.map(({ text }) => text).join()}`)
    }
    for (const { id } of [owner, other]) {
      await service.write(`INSERT INTO members (organization_id, user_id, role) VALUES ('${o}', ${id}, 'owner')
        ON CONFLICT (organization_id, user_id) DO UPDATE SET role = 'owner'`)
    }
  }
  t.equal((await rolesIn(o)).length, 2)
})

/** The spellings of an address: in Unicode as people type it, decomposed, and in ASCII. */
const spellingsOf = (local: string, label: string) => {
  const [unicode, ascii] = [`${local}@bücher-${label}.example`, `${local}@xn--bcher-${label}-q9a.example`]
  return [unicode, ascii, unicode.toUpperCase(), ascii.toUpperCase(), unicode.normalize('NFD')]
}

t.test('an address is one account with one seat, however it is spelled, and everything finds it', async (t) => {
  const { o, path, call } = await nimbus('free')
  const seats = async () => (await call('GET', path)).body.meta.total as number
  const before = await seats()
  const spellings = spellingsOf('rosa', 'one')
  const [invited, ...again] = [spellings[1]!, ...spellings]
  t.match(await call('POST', path, { email: invited, role: 'member' }), { status: 201 })
  for (const email of again) {
    const answer = await call('POST', path, { email, role: 'member' })
    t.match(answer, { status: 422, body: { error: 'already_member', details: { status: 'invited' } } }, email)
  }
  const made = await addUser(service.database, address, { email: spellings[2]!, name: 'Rosa' })
  for (const email of spellings) {
    await t.rejects(addUser(service.database, address, { email, name: 'Rosa' }), /An account with \S+ already exists/, email)
  }
  const browser = visitor(address)
  await browser.send(formIn(await browser.open(made.link)), { name: 'Rosa', password: 'first password' })
  const [{ id }] = (await call('GET', `/organizations/${o}/invitations`)).body.data
  const account = await browser.open('/account')
  await browser.send({ ...formIn(account), action: '/account/invitations/accept' }, { id })
  t.equal(await seats(), before + 1)
  const signIn = async (email: string, password = 'first password') => {
    const one = visitor(address)
    return (await one.signIn(await one.open('/account'), email, password)).text.includes('/account/sign-out')
  }
  for (const email of spellings) t.ok(await signIn(email), email)
  await switchUser(service.database, spellings[3]!, true)
  t.match(await lastEvent(o), { action: 'user.disable' })
  t.notOk(await signIn(spellings[0]!))
})

/**
 * Characters that end or split the host of a URL, their full-width forms, invisible characters, and characters that
 * change the direction of text.
 */
const ODD_SIGNS = [
  ...'/?#\\%@:<>[]|_ ', ...'／？＃＼％＠：＜［＿．。｡․…⁄℀⒈', '%2f', '%EF%BC%8F', '..', '\u0000', '\t', '\r\n', '\u0085', '\u00a0', '\u00a8',
  '\u00ad', '\u034f', '\u061c', '\u115f', '\u17b4', '\u180b', '\u180e', '\u200b', '\u200c', '\u200d', '\u200e',
  '\u2028', '\u202e', '\u2060', '\u2066', '\u3164', '\ufe0f', '\ufeff', '\uffa0', '\ud800', '\u{e0041}', '\u{e0100}',
  '\u034f?', '\u180b#', 'xn--', 'ß', 'İ', 'ſ', 'ａ', '①', '\u0301'
]

// Escapes characters that would break a line of TAP output, such as U+2028.
const inAscii = (emails: readonly string[]) => JSON.stringify(emails)
  .replace(/[^ -~]/g, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, '0')}`)

/** Addresses with a character at each place of the local part, and of a domain in ASCII and in Unicode. */
const withSign = (sign: string, local: string) => [
  `${sign}${local}@victim.example`, `${local}${sign}x@victim.example`, `${local}${sign}@victim.example`,
  `${local}@xn--bcher-kva${sign}.example`, `${local}@xn--bcher-kva.example${sign}`,
  ...['victim.example', 'bücher.example'].flatMap((domain) => [
    `${local}@${sign}${domain}`, `${local}@${domain.replace('e', () => `${sign}e`)}`,
    `${local}@${domain.replace('.', () => `${sign}.`)}`, `${local}@${domain.replace('.', () => `.${sign}`)}`,
    `${local}@${domain}${sign}`, `${local}@${domain}\ufe0f${sign}.evil.example`
  ])
]

t.test('mail goes to the very address that an account is found by, or the address is refused', async (t) => {
  const mail = await startMailServer(t)
  const on = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
  const { organization: o, call } = await on.organization()
  /** Sends invitations. Returns the addresses that got mail, in lower case, without the refused addresses. */
  const invite = async (emails: readonly string[]): Promise<string[]> => {
    const answers = await Promise.all(emails.map((email) =>
      call('POST', `/organizations/${o}/members`, { email, role: 'member' })))
    const refused = answers.filter(({ status }) => status !== 201)
    t.ok(refused.every((answer) => answer.status === 422 && answer.body.error === 'validation_failed'))
    await on.app.outbox.settled()
    const reached = mail.mails.splice(0).flatMap(({ to }) => to.map((one) => one.toLowerCase())).sort()
    const ids = answers.flatMap(({ status, body }) => status === 201 ? [body.data.id] : [])
    const accounts = await on.sql(`SELECT email_normalized FROM invitations
      WHERE organization_id = '${o}' AND id IN (${['0', ...ids].map((id) => `'${id}'`).join()})`)
    t.strictSame(reached, accounts.map(({ email_normalized }) => email_normalized).sort(), inAscii(emails))
    await on.sql(`DELETE FROM invitations WHERE organization_id = '${o}'`)
    t.strictSame(reached.filter((one) => !/^[^@]+@(?:[a-z0-9-]+\.)*[a-z0-9-]+$/.test(one)), [])
    return reached
  }
  for (const [email, mailbox] of [
    ['One.Two@Victim.Example', 'one.two@victim.example'], ['one@bücher.example', 'one@xn--bcher-kva.example'],
    ['two@XN--BCHER-KVA.example', 'two@xn--bcher-kva.example'], ['ｔｈｒｅｅ@ｖictim.example', 'three@victim.example'],
    ['four@STRAßE.example', 'four@xn--strae-oqa.example'], ['five@βόλος.example', 'five@xn--nxasmm1c.example'],
    ['six@mail-1.victim.example', 'six@mail-1.victim.example'], ['søren@victim.example', 'søren@victim.example']
  ] as const) t.strictSame(await invite([email]), [mailbox])
  t.strictSame(await invite([
    'al@xn--example-.net', 'al@xn--.net', 'al@xn--a.net', 'al@bü%41cher.example', 'al@bücher..example', 'al@bücher.1',
    'al@xn--bcher-kva/.example', 'victim@example.com\ufe0f／.evil.example'
  ]), [])
  for (const [i, sign] of sample([...ODD_SIGNS.entries()], 3)) {
    // Each invitation has another local part, so that no address belongs to another account.
    await invite(withSign(sign, 'one').map((email, place) => email.replace('one', `v${i}-${place}`)))
  }
})

t.test('an account whose address is none keeps it, is found by that alone, and gets no mail', async (t) => {
  const rosa = await makePerson(service)
  const signIn = async (email: string) => {
    const one = visitor(address)
    return (await one.signIn(await one.open('/account'), email, rosa.password)).text.includes('/account/sign-out')
  }
  const give = (email: string, normalized: string) => service.write(
    `UPDATE users SET email = '${email}', email_normalized = '${normalized}' WHERE id = ${rosa.id}`
  )
  const others = ['odd@bü', 'odd@xn--b-xga', 'odd@bü.example', 'odd@victim.example']
  for (const email of ['odd@bü/b.example', 'odd@bü?b.example', 'odd@bü#', 'odd@victim.example\ufe0f/.evil.example']) {
    await give(email, email)
    t.ok(await signIn(email.toUpperCase()), email)
    for (const other of others) t.notOk(await signIn(other), `${other} is not ${email}`)
    const lines: string[] = []
    const config = loadConfig({ SMTP_URL: 'smtp://127.0.0.1:1' })
    const link = await renewLink(service.database, address, email)
    t.equal(await mailLink(config, link, (line) => lines.push(line)), false)
    t.match(lines, [/^The mail to user \d+ was not sent: invalid e-mail address$/])
  }
})

t.test('a member may leave, through an application that was granted it', async (t) => {
  const { o, path } = await nimbus()
  const [rosa, theo] = [await makePerson(service, { [o]: 'member' }), await makePerson(service, { [o]: 'member' })]
  const own = `${path}/${rosa.id}`
  t.strictSame(failing(await (await as(rosa, ['member:read']))('DELETE', own)), [403, 'insufficient_permissions'])
  t.strictSame(failing(await (await as(theo))('DELETE', own)), [403, 'insufficient_permissions'], 'no other member')
  const call = await as(rosa)
  t.equal((await call('DELETE', own)).status, 204)
  t.equal((await call('GET', own)).status, 404)
})

t.test('what a removed member made and holds ends at once and for good; what they have elsewhere stays', async (t) => {
  const { o, path, call } = await nimbus()
  const elsewhere = await nimbus()
  const rosa = await makePerson(service, { [o]: 'administrator', [elsewhere.o]: 'administrator' })
  const theirs = await as(rosa)
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const make = async (by: Call, organization: string) => {
    const { status, text, body } = await by('POST', `/organizations/${organization}/api-keys`, {
      name: 'Theirs', abilities: ['api-token:create', 'project:read'], expires_at
    })
    t.equal(status, 201, text)
    return bearer(body.token)
  }
  const first = await make(theirs, o)
  const second = await make(first, o)
  const other = await make(theirs, elsewhere.o)
  const alive = async () => [
    (await first('GET', `/${o}/projects`)).status, (await second('GET', `/${o}/projects`)).status,
    (await theirs('GET', `/${o}/projects`)).status, (await other('GET', `/${elsewhere.o}/projects`)).status,
    (await theirs('GET', '/user')).status
  ]
  t.strictSame(await alive(), [200, 200, 200, 200, 200])
  t.equal((await call('DELETE', `${path}/${rosa.id}`)).status, 204)
  t.strictSame(await alive(), [401, 401, 404, 200, 200])
  t.match(await lastEvent(o), { action: 'member.delete', details: { tokens: 2, token_ids: /^\d+ \d+$/ } })
  await join(service, call, o, rosa, 'administrator')
  t.strictSame(await alive(), [401, 401, 200, 200, 200], 'a new membership brings back no token')
})

t.test('each organization is told which API tokens end there with a grant, an account or a client', async (t) => {
  const [one, other] = [await nimbus(), await nimbus()]
  const rosa = await makePerson(service, { [one.o]: 'administrator', [other.o]: 'administrator' })
  const expires_at = new Date(Date.now() + 3_600_000).toISOString()
  const endings: [action: string, end: (access: string) => Promise<unknown>][] = [
    ['oauth.revoke', (token) => service.inject({
      method: 'POST', url: '/api/oauth/revoke', payload: { token, client_id: 'dotenv-cli' }
    })],
    ['user.enable', () => switchUser(service.database, rosa.email, false)],
    ['oauth.revoke', () => switchClient(service.database, 'dotenv-cli', false)]
  ]
  for (const [action, end] of endings) {
    const { access } = await issuePair(service, rosa, SCOPE_NAMES)
    const make = async (organization: string) => {
      const { status, text, body } = await bearer(access)('POST', `/organizations/${organization}/api-keys`, {
        name: 'Theirs', abilities: ['project:read'], expires_at
      })
      t.equal(status, 201, text)
      return Number(body.api_key.id)
    }
    const made = [await make(one.o), await make(one.o)]
    const elsewhere = await make(other.o)
    await end(access)
    t.match(await lastEvent(one.o), { action, details: { tokens: 2, token_ids: made.join(' ') } })
    t.match(await lastEvent(other.o), { action, details: { tokens: 1, token_ids: String(elsewhere) } })
    await end(access)
    t.notMatch(await lastEvent(one.o), { action: 'user.enable', details: { tokens: Number } }, 'and of none where none ends')
  }
})

t.test('what a person does is recorded in each of their organizations, however many', async (t) => {
  const { o } = await nimbus()
  const rosa = await makePerson(service, { [o]: 'member' })
  const leave = await crowd(service, rosa, 'member', 1_001)
  await switchUser(service.database, rosa.email, false)
  const recorded = async () => (await service.sql(
    `SELECT count(*)::int AS events FROM audit_events WHERE action = 'user.enable' AND resource_id = '${rosa.id}'`
  ))[0]!.events
  // On Citus, the background worker records events of so many organizations.
  if (ON_CITUS) {
    service.app.lateEvents.wake()
    await until(async () => await recorded() === 1_002, { every: 500, within: 180_000 })
  }
  t.match(await lastEvent(o), { action: 'user.enable' }, 'the last of them by its id, too')
  t.equal(await recorded(), 1_002)
  await leave()
})

t.test('the operator is told which organizations lose their last owner with an account', async (t) => {
  const { o, owner } = await nimbus()
  t.match(await switchUser(service.database, owner.email, true), [/^nimbus/])
  t.match(await switchUser(service.database, owner.email, false), [])
  await makePerson(service, { [o]: 'owner' })
  t.match(await switchUser(service.database, owner.email, true), [])
  const lines: string[] = []
  for await (const line of describeUsers(service.database)) lines.push(line)
  t.ok(lines.some((line) => line.includes(owner.email) && line.includes('disabled')))
})

t.test('additions of people and changes of roles are limited per organization and hour, for all its callers', async (t) => {
  const limited = await startApp(t, { RATE_LIMIT_API: '3' })
  // The test does not count the general requests of this organization.
  await limited.sql('UPDATE plans SET api_per_minute = 1000 WHERE name = \'team\'')
  const [caller, other] = [await limited.organization({ plan: 'team' }), await limited.organization({ plan: 'team' })]
  const add = ({ call, organization }: typeof caller, email: string) =>
    call('POST', `/organizations/${organization}/members`, { email, role: 'auditor' })
  for (let n = 0; n < 5; n++) t.equal((await add(caller, 'no address')).status, 422, 'what is refused does not count')
  const [member] = [await makePerson(limited, { [caller.organization]: 'auditor' })]
  for (let n = 0; n < 2; n++) t.equal((await add(caller, newcomer())).status, 201)
  const changed = await caller.call('PATCH', `/organizations/${caller.organization}/members/${member.id}`, {
    role: 'developer'
  })
  t.equal(changed.status, 200)
  const refused = await add(await limited.token(caller.organization, ['*']), newcomer())
  t.match([refused.status, refused.body.error], [429, 'rate_limit_exceeded'])
  t.ok(Number(refused.headers['retry-after']) > 60, 'within the hour')
  t.equal((await add(other, newcomer())).status, 201)
})
