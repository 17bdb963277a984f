// runs: one database
import { sql } from 'drizzle-orm'
import t from 'tap'
import type { Scope } from '../../schemas/scopes.ts'
import { TEAM_LIMITS } from '../../schemas/teams.ts'
import { MAX_LEVELS_OF_SHORT_DELETION } from '../../src/vault/operations/long-operations.ts'
import { makeLevel, startApp, type Answer } from '../helpers/app.ts'
import { callAs, makePerson, makeTeam, type Person } from '../helpers/people.ts'
import { startMailServer } from '../helpers/smtp.ts'
import { until } from '../helpers/until.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

// Guests: members whose role gives nothing but a look at the organization, and invitations to one place.

const mail = await startMailServer(t)
const service = await startApp(t, { SMTP_URL: `smtp://127.0.0.1:${mail.port}` })
const address = await service.app.listen({ host: '127.0.0.1', port: 0 })

const failing = ({ status, body }: Answer) => [status, body?.error]
const LIVE = { project: 'orbit', target: 'backend', environment: 'live' }

/** An organization with a project, whose target `backend` has the environments `live` and `test`. */
async function nimbus () {
  const owner = await service.organization()
  const { organization: o, call } = owner
  await makeLevel(owner, { slug: 'orbit' })
  await call('POST', `/${o}/orbit/backend/environments`, { name: 'Test' })
  for (const [place, plaintext] of [
    [{ project: 'orbit' }, 'SHARED=1'], [LIVE, 'TOKEN=planted'], [{ ...LIVE, environment: 'test' }, 'OTHER=1']
  ] as const) {
    const { status, text } = await call('POST', `/${o}/secrets/store`, { ...place, plaintext })
    if (status !== 200) throw new Error(text)
  }
  const members = `/organizations/${o}/members`
  const invite = async (more: object, by = call) => {
    const guest = await makePerson(service)
    return { guest, answer: await by('POST', members, { email: guest.email, role: 'guest', ...more }) }
  }
  const accept = async (guest: Person, { body }: Answer) =>
    (await callAs(service, guest))('POST', `/user/invitations/${body.data.id}/accept`)
  const join = async (more: object) => {
    const { guest, answer } = await invite(more)
    const accepted = await accept(guest, answer)
    if (accepted.status !== 200) throw new Error(accepted.text)
    return guest
  }
  const teams = async () => (await call('GET', `/organizations/${o}/teams?sort=created_at`)).body.data as {
    id: string, attributes: { name: string, slug: string, member_count: number, project_count: number }
  }[]
  const teamsOf = async ({ id }: Person) =>
    ((await call('GET', `${members}/${id}/access`)).body.data.attributes.projects as { teams: { id: string }[] }[])
      .flatMap(({ teams }) => teams)
  const events = async () => service.sql(`SELECT action, actor_type, actor_id::float8, resource_type, resource_id, details
    FROM audit_events WHERE organization_id = '${o}' ORDER BY seq`) as unknown as Promise<{
    action: string, actor_type: string, actor_id: number | null, resource_id: string, details: Record<string, unknown>
  }[]>
  return { o, owner, call, members, invite, accept, join, teams, teamsOf, events }
}

t.test('S-11.2: a guest sees the organization and the own access, and nothing else', async (t) => {
  const { o, call, members, join } = await nimbus()
  const guest = await join({})
  const by = await callAs(service, guest)
  t.strictSame((await call('GET', `${members}/${guest.id}`)).body.data.attributes.role, 'guest')
  t.equal((await by('GET', `/organizations/${o}`)).status, 200)
  t.match((await by('GET', `${members}/${guest.id}/access`)).body.data.attributes, {
    role: 'guest', scopes: ['organization:read'], projects: []
  })
  t.strictSame((await by('GET', `/${o}/audit-events`)).body.data, [], 'the audit log is empty')
  for (const path of [
    `/${o}/projects`, `/${o}/orbit`, `/${o}/orbit/secrets/matrix`, `/${o}/orbit/backend/live/secrets`, members,
    `/organizations/${o}/teams`, `/organizations/${o}/api-keys`, `/organizations/${o}/usage`,
    `/${o}/secrets/names?search=TOKEN`
  ]) t.strictSame(failing(await by('GET', path)), [403, 'insufficient_permissions'], path)
  t.strictSame(failing(await by('POST', members, { email: 'a@nimbus.example', role: 'guest' })),
    [403, 'insufficient_permissions'])
})

t.test('a holder of member:create may make guests, also without the scope of a guest, and no other role', async (t) => {
  const { o, invite, members, call } = await nimbus()
  const weak = await service.token(o, ['member:create', 'member:update'])
  t.equal((await invite({}, weak.call)).answer.status, 201)
  t.strictSame(failing((await invite({ role: 'api_user' }, weak.call)).answer), [422, 'role_not_held'])
  const person = await makePerson(service, { [o]: 'guest' })
  t.strictSame(failing(await weak.call('PATCH', `${members}/${person.id}`, { role: 'member' })), [422, 'role_not_held'])
  t.equal((await call('PATCH', `${members}/${person.id}`, { role: 'member' })).status, 200)
})

t.test('a guest takes a seat of the plan', async (t) => {
  const { organization: o, call } = await service.organization({ plan: 'free' })
  for (let i = 0; i < 5; i++) await makePerson(service, { [o]: 'guest' })
  const answer = await call('POST', `/organizations/${o}/members`, { email: 'a@nimbus.example', role: 'guest' })
  t.strictSame(failing(answer), [422, 'plan_limit_reached'])
})

t.test('guest is no role of a team', async (t) => {
  const { o, call } = await nimbus()
  await call('POST', `/organizations/${o}/teams`, { name: 'Crew', slug: 'crew' })
  t.strictSame(failing(await call('PUT', `/organizations/${o}/teams/crew/projects/orbit`, { role: 'guest' })),
    [422, 'validation_failed'])
})

t.test('the mail of an invitation to a place quotes its slugs, and cuts them at 60 characters', async (t) => {
  const { o, call, invite } = await nimbus()
  const long = 'your-account-ends-today-so-call-0800-123456'
  await call('POST', `/${o}/projects`, { name: 'Call', slug: long })
  await call('POST', `/${o}/${long}/targets`, { name: 'Now', slug: 'and-tell-your-password' })
  for (const [place, shown] of [
    [{ project: 'orbit' }, 'orbit'],
    [{ project: 'orbit', target: 'backend' }, 'orbit/backend'],
    [{ project: long }, long],
    [{ project: long, target: 'and-tell-your-password' }, `${long}/and-tell-your-p…`]
  ] as const) {
    const sent = mail.mails.length
    const { answer } = await invite({ place, place_role: 'developer' })
    t.equal(answer.status, 201, answer.text)
    await until(async () => mail.mails.length > sent)
    t.match(mail.mails.at(-1)!.text.replace(/\s+/g, ' '), `as guest, with the role developer in "${shown}". To accept`)
  }
})

t.test('an invitation to a place makes a guest with a role in this place alone', async (t) => {
  const { o, accept, invite, teams, events } = await nimbus()
  const sent = mail.mails.length
  const { guest, answer } = await invite({ place: LIVE, place_role: 'developer' })
  t.equal(answer.status, 201)
  t.match(answer.body.data.attributes, { role: 'guest', place: LIVE, place_role: 'developer' })
  t.match((await events()).at(-1), {
    action: 'invitation.create', details: { role: 'guest', place_role: 'developer', place: /^\w{26}\/\w{26}\/\w{26}$/ }
  })
  await until(async () => mail.mails.length > sent)
  t.match(mail.mails.at(-1)!.text.replace(/\s+/g, ' '), 'as guest, with the role developer in "orbit/backend/live".')

  t.strictSame((await accept(guest, answer)).body.data.attributes.role, 'guest')
  const by = await callAs(service, guest)
  t.strictSame((await by('GET', `/${o}/orbit/backend/live/secrets?decrypt=true&raw=true`)).body, { TOKEN: 'planted' })
  t.equal((await by('POST', `/${o}/secrets/store`, { ...LIVE, plaintext: 'TOKEN=next' })).status, 200)
  t.equal((await by('GET', `/${o}/orbit/backend/test/secrets`)).status, 404)
  t.equal((await by('GET', `/${o}/orbit`)).status, 404)
  const { levels } = (await by('GET', `/${o}/orbit/secrets/matrix?decrypt=false`)).body.data.attributes
  t.match(levels, [{ level: 'environment', ...LIVE, project: undefined, name: 'Live', target_name: 'Backend' }])
  t.equal(levels.length, 1)

  const [team, ...others] = await teams()
  t.match(team!.attributes, { name: 'orbit/backend/live: developer', slug: 'orbit-backend-live-developer' })
  t.strictSame(others, [])
  const [joined, ...made] = (await events()).filter(({ details }) => details.invitation === answer.body.data.id)
  t.match(joined, { action: 'member.join', actor_type: 'user', actor_id: guest.id })
  t.match(made, [
    { action: 'team.create', actor_id: guest.id, resource_id: team!.id },
    { action: 'team-project.update', resource_id: team!.id, details: { project: 'orbit', role: 'developer' } },
    { action: 'team-member.create', resource_id: team!.id, details: { user_id: guest.id } }
  ])
})

t.test('an invitation to the same place with the same role uses the same team, and no other', async (t) => {
  const { o, call, join, teams, teamsOf } = await nimbus()
  const teamOf = async (place: object, place_role = 'developer') => (await teamsOf(await join({ place, place_role })))[0]!.id
  const first = await teamOf(LIVE)
  t.equal(await teamOf(LIVE), first)
  const others = [
    await teamOf(LIVE, 'auditor'), await teamOf({ ...LIVE, environment: 'test' }), await teamOf({ ...LIVE, inherited: true }),
    await teamOf({ project: 'orbit', target: 'backend' }), await teamOf({ project: 'orbit' })
  ]
  t.equal(new Set([first, ...others]).size, 6)
  t.strictSame((await teams()).map(({ attributes: { name, member_count } }) => [name, member_count]), [
    ['orbit/backend/live: developer', 2], ['orbit/backend/live: auditor', 1], ['orbit/backend/test: developer', 1],
    ['orbit/backend/live with inherited: developer', 1], ['orbit/backend: developer', 1], ['orbit: developer', 1]
  ])

  // A team that a person made, with the same role, restrictions and slug, is not used.
  const path = `/organizations/${o}/teams`
  await call('POST', path, { name: 'Ours', slug: 'orbit-backend-test-auditor' })
  const ours = `${path}/orbit-backend-test-auditor/projects/orbit`
  await call('PUT', ours, { role: 'auditor', restrictions: [{ target: 'backend', environment: 'test' }] })
  await teamOf({ ...LIVE, environment: 'test' }, 'auditor')
  t.equal((await call('GET', `${path}/orbit-backend-test-auditor`)).body.data.attributes.member_count, 0)
  t.equal((await call('GET', `${path}/orbit-backend-test-auditor-2`)).body.data.attributes.member_count, 1)

  // Neither is one that got another role since, or another project.
  await call('PUT', `${path}/${first}/projects/orbit`, { role: 'member' })
  const second = await teamOf(LIVE)
  t.not(second, first)
  await call('POST', `/${o}/projects`, { name: 'Comet', slug: 'comet' })
  await call('PUT', `${path}/${second}/projects/comet`, { role: 'member' })
  const third = await teamOf(LIVE)
  t.notOk([first, second].includes(third))

  // Neither is one that a person changed, also if the change was undone.
  const colleague = await makePerson(service, { [o]: 'guest' })
  const changes: Record<string, (team: string) => Promise<unknown>> = {
    'a name': (team) => call('PATCH', `${path}/${team}`, { name: 'Contractors' }),
    'a description': (team) => call('PATCH', `${path}/${team}`, { description: 'for the night' }),
    'a member': (team) => call('PUT', `${path}/${team}/members/${colleague.id}`, {}),
    'a role and back': async (team) => {
      await call('PUT', `${path}/${team}/projects/orbit`, { role: 'auditor' })
      await call('PUT', `${path}/${team}/projects/orbit`, { role: 'developer' })
    },
    'a project and back': async (team) => {
      await call('PUT', `${path}/${team}/projects/comet`, { role: 'auditor' })
      await call('DELETE', `${path}/${team}/projects/comet`)
    }
  }
  let present = third
  for (const [what, change] of Object.entries(changes)) {
    t.equal(await teamOf(LIVE), present, `before ${what}`)
    await change(present)
    const next = await teamOf(LIVE)
    t.not(next, present, what)
    present = next
  }
})

t.test('a renamed place is the same, and a deleted one leaves a guest without a team', async (t) => {
  const { o, call, members, invite, accept, teams, teamsOf } = await nimbus()
  const [one, two] = [
    await invite({ place: LIVE, place_role: 'member' }), await invite({ place: LIVE, place_role: 'member' })
  ]
  await call('PATCH', `/${o}/orbit/backend/live`, { slug: 'production' })
  const list = async () => (await call('GET', `/organizations/${o}/invitations`)).body.data
    .map(({ attributes: { place, place_role } }: any) => [place, place_role])
  t.strictSame(await list(), Array(2).fill([{ ...LIVE, environment: 'production' }, 'member']))
  t.equal((await accept(one.guest, one.answer)).status, 200)
  t.equal((await teamsOf(one.guest)).length, 1)
  await call('DELETE', `/${o}/orbit/backend/production`)
  t.strictSame(await list(), [[null, 'member']])
  const again = await call('POST', `/organizations/${o}/invitations/${two.answer.body.data.id}/send`, {})
  t.match(again.body.data.attributes, { place: null, place_role: 'member' })
  t.equal((await accept(two.guest, two.answer)).status, 200)
  t.equal((await call('GET', `${members}/${two.guest.id}`)).body.data.attributes.role, 'guest')
  t.strictSame(await teamsOf(two.guest), [])
  t.equal((await teams())[0]!.attributes.member_count, 1)
})

t.test('the rules of a place are checked before anything is made', async (t) => {
  const { o, call, invite } = await nimbus()
  const refused = async (more: object, field: string) => {
    const { answer } = await invite(more)
    t.strictSame([...failing(answer), Object.keys(answer.body.errors ?? {})], [422, 'validation_failed', [field]], field)
  }
  await refused({ place: LIVE }, 'place_role')
  await refused({ place_role: 'member' }, 'place')
  await refused({ role: 'member', place: LIVE, place_role: 'member' }, 'role')
  await refused({ place: { project: 'orbit', environment: 'live' }, place_role: 'member' }, 'place.target')
  await refused({ place: { project: 'orbit', inherited: true }, place_role: 'member' }, 'place.inherited')
  await refused({ place: { ...LIVE, other: 1 }, place_role: 'member' }, 'place.other')
  for (const level of ['project', 'target', 'environment'] as const) {
    await refused({ place: { ...LIVE, [level]: 'none' }, place_role: 'member' }, `place.${level}`)
  }
  for (const place_role of ['guest', 'billing_manager', 'none']) await refused({ place: LIVE, place_role }, 'place_role')
  t.equal((await invite({ place: LIVE, place_role: 'admin' })).answer.body.data.attributes.place_role, 'administrator')
  t.equal((await call('GET', `/organizations/${o}/invitations`)).body.data.length, 1)
})

t.test('an invitation to a place needs member:create, team:update and the scopes of its role', async (t) => {
  const { o, call, invite } = await nimbus()
  const held: Scope[] = ['member:create', 'team:update', 'secret:read', 'project:read', 'target:read', 'environment:read']
  const place = { place: LIVE, place_role: 'api_user' }
  for (const missing of ['member:create', 'team:update'] as const) {
    const { call: by } = await service.token(o, held.filter((scope) => scope !== missing))
    const { answer } = await invite(place, by)
    t.strictSame([answer.status, answer.body.details?.required_scope], [403, missing])
  }
  const { call: by } = await service.token(o, held)
  t.strictSame(failing((await invite({ ...place, place_role: 'member' }, by)).answer), [422, 'role_not_held'])
  const { answer, guest } = await invite(place, by)
  t.equal(answer.status, 201)

  const send = `/organizations/${o}/invitations/${answer.body.data.id}/send`
  const { call: weak } = await service.token(o, ['member:create'])
  t.strictSame(failing(await weak('POST', send, {})), [403, 'insufficient_permissions'], 'also to send it again')
  const { call: weaker } = await service.token(o, ['member:create', 'team:update'])
  t.strictSame(failing(await weaker('POST', send, {})), [422, 'role_not_held'])
  t.equal((await by('POST', send, {})).status, 200)
  t.ok(guest)
  t.equal((await call('GET', `/organizations/${o}/invitations`)).body.data.length, 1)
})

t.test('a place is given by what its inviter may do when it is accepted', async (t) => {
  const { o, invite, accept } = await nimbus()
  const tokens = ['team:update', 'secret:read'] as const
  for (const lost of tokens) {
    const inviter = await service.token(o, [
      'member:create', 'team:update', 'secret:read', 'project:read', 'target:read', 'environment:read'
    ])
    const { guest, answer } = await invite({ place: LIVE, place_role: 'api_user' }, inviter.call)
    t.equal(answer.status, 201)
    await service.write(`UPDATE api_tokens SET abilities = array_remove(abilities, '${lost}')
      WHERE id = ${answer.body.data.attributes.invited_by.id}`)
    t.strictSame(failing(await accept(guest, answer)), [404, 'not_found'], lost)
  }
})

t.test('a full team of a place is left, and further guests get another one', async (t) => {
  const { o, join, teams, teamsOf } = await nimbus()
  const first = await join({ place: LIVE, place_role: 'member' })
  const [{ id: team } = { id: '' }] = await teamsOf(first)
  const people = await Promise.all(Array.from({ length: TEAM_LIMITS.members - 1 }, () => 0).map(async (_, i) =>
    `full-${o.toLowerCase()}-${i}@nimbus.example`))
  await service.write(`INSERT INTO users (email, email_normalized, name, is_verified)
    SELECT e, e, 'Full', true FROM unnest(ARRAY['${people.join("','")}']) e`)
  await service.write(`INSERT INTO members (organization_id, user_id, role)
    SELECT '${o}', id, 'guest' FROM users WHERE email LIKE 'full-${o.toLowerCase()}-%'`)
  await service.write(`INSERT INTO team_members (organization_id, team_id, user_id)
    SELECT '${o}', '${team}', id FROM users WHERE email LIKE 'full-${o.toLowerCase()}-%'`)
  const second = await join({ place: LIVE, place_role: 'member' })
  t.not((await teamsOf(second))[0]!.id, team)
  t.strictSame((await teams()).map(({ attributes }) => attributes.member_count), [TEAM_LIMITS.members, 1])
})

t.test('people who accept at the same time share one team', async (t) => {
  const { invite, accept, teams } = await nimbus()
  const invited = []
  for (let i = 0; i < 4; i++) invited.push(await invite({ place: LIVE, place_role: 'member' }))
  const answers = await Promise.all(invited.map(({ guest, answer }) => accept(guest, answer)))
  t.strictSame(answers.map(({ status }) => status), [200, 200, 200, 200])
  t.strictSame((await teams()).map(({ attributes }) => attributes.member_count), [4])
})

t.test('a new level of the same name is another place', async (t) => {
  const { o, owner, call, invite, accept, members, teams } = await nimbus()
  const steps = [
    ['environment', `/${o}/orbit/backend/live`, () => call('POST', `/${o}/orbit/backend/environments`, { name: 'Live' })],
    ['target', `/${o}/orbit/backend`, async () => {
      await call('POST', `/${o}/orbit/targets`, { name: 'Backend' })
      return call('POST', `/${o}/orbit/backend/environments`, { name: 'Live' })
    }],
    ['project', `/${o}/orbit`, () => makeLevel(owner, { slug: 'orbit' })]
  ] as const
  for (const [what, path, again] of steps) {
    const invited = [
      await invite({ place: LIVE, place_role: 'administrator' }),
      await invite({ place: { project: 'orbit' }, place_role: 'administrator' })
    ]
    t.equal((await call('DELETE', path)).status, 204, what)
    await again()
    await call('POST', `/${o}/secrets/store`, { ...LIVE, plaintext: 'TOKEN=another' })
    for (const [i, { guest, answer }] of invited.entries()) {
      const isLeft = i === 1 && what !== 'project'
      t.equal((await accept(guest, answer)).body.data.attributes.role, 'guest', what)
      const { projects } = (await call('GET', `${members}/${guest.id}/access`)).body.data.attributes
      t.equal(projects.length, isLeft ? 1 : 0, `${what}: the ${isLeft ? 'project is left' : 'place is gone'}`)
      const by = await callAs(service, guest)
      t.equal((await by('GET', `/${o}/orbit/backend/live/secrets?decrypt=true`)).status, isLeft ? 200 : 403, what)
    }
  }
  t.strictSame((await teams()).map(({ attributes: { name } }) => name), ['orbit: administrator'])
})

t.test('an invitation to a place ends with the demotion, the removal and the token of its inviter', async (t) => {
  const { o, call, invite, accept, members, events } = await nimbus()
  const place = { place: LIVE, place_role: 'developer' }
  const ends = [
    async (id: string) => call('PATCH', `${members}/${id}`, { role: 'developer' }),
    async (id: string) => call('DELETE', `${members}/${id}`)
  ]
  for (const end of ends) {
    const inviter = await makePerson(service, { [o]: 'administrator' })
    const { guest, answer } = await invite(place, await callAs(service, inviter))
    t.equal(answer.status, 201)
    t.ok((await end(String(inviter.id))).status < 300)
    t.match((await events()).at(-1), { action: 'invitation.withdraw', details: { with: 'inviter', place_role: 'developer' } })
    await call('PATCH', `${members}/${inviter.id}`, { role: 'administrator' })
    t.equal((await accept(guest, answer)).status, 404)
  }
  const token = await service.token(o, ['*'])
  const { guest, answer } = await invite(place, token.call)
  await service.write(`UPDATE api_tokens SET expires_at = now() - interval '1 second'
    WHERE id = ${answer.body.data.attributes.invited_by.id}`)
  t.equal((await accept(guest, answer)).status, 404, 'an expired token')
})

t.test('a person who is in as many teams as possible, or a member already, joins as far as possible', async (t) => {
  const { o, call, invite, accept, members, teamsOf, teams } = await nimbus()
  const { guest, answer } = await invite({ place: LIVE, place_role: 'member' })
  await service.write(`INSERT INTO members (organization_id, user_id, role) VALUES ('${o}', ${guest.id}, 'api_user')`)
  for (let i = 0; i < TEAM_LIMITS.teamsOfMember; i++) await makeTeam(service, o, [guest], {})
  t.equal((await accept(guest, answer)).body.data.attributes.role, 'api_user', 'the role stays')
  t.strictSame(await teamsOf(guest), [])
  t.equal((await teams()).length, TEAM_LIMITS.teamsOfMember, 'and no team is made')

  const other = await invite({ place: LIVE, place_role: 'member' })
  await service.write(`INSERT INTO members (organization_id, user_id, role) VALUES ('${o}', ${other.guest.id}, 'auditor')`)
  t.equal((await accept(other.guest, other.answer)).body.data.attributes.role, 'auditor')
  t.equal((await teamsOf(other.guest)).length, 1)
  t.equal((await call('GET', `${members}/${other.guest.id}`)).body.data.attributes.role, 'auditor')
})

t.test('without room for another team, the person joins without one', async (t) => {
  const { o, invite, accept, teamsOf, join } = await nimbus()
  await join({ place: LIVE, place_role: 'member' })
  await service.write(`INSERT INTO teams (id, organization_id, name, slug)
    SELECT lpad(n::text, 26, '0'), '${o}', 'Team', 'team-' || n FROM generate_series(2, ${TEAM_LIMITS.teams}) n`)
  const { guest, answer } = await invite({ place: LIVE, place_role: 'developer' })
  t.equal((await accept(guest, answer)).status, 200)
  t.strictSame(await teamsOf(guest), [])
  t.equal((await teamsOf(await join({ place: LIVE, place_role: 'member' }))).length, 1, 'a team that exists has room')
})

t.test('acceptances while the place is deleted leave no role in it', async (t) => {
  for (let round = 0; round < 3; round++) {
    const { o, call, invite, accept, members } = await nimbus()
    const invited = []
    for (let i = 0; i < 3; i++) invited.push(await invite({ place: LIVE, place_role: 'member' }))
    const [deleted, ...accepted] = await Promise.all([
      call('DELETE', `/${o}/orbit${['/backend/live', '/backend', ''][round % 3]!}`),
      ...invited.map(async ({ guest, answer }) => accept(guest, answer))
    ])
    t.equal(deleted.status, 204)
    t.strictSame(accepted.map(({ status }) => status), [200, 200, 200])
    for (const { guest } of invited) {
      const { role, projects } = (await call('GET', `${members}/${guest.id}/access`)).body.data.attributes
      t.strictSame([role, projects], ['guest', []])
    }
    t.equal((await service.sql(`SELECT FROM team_projects WHERE organization_id = '${o}'`)).length, 0)
  }
})

t.test('a person gets the role in the place also by the account page, and by the link with a new account', async (t) => {
  const { o, call, members, invite, teams, events } = await nimbus()
  const place = { place: LIVE, place_role: 'developer' }
  const { guest, answer } = await invite(place)
  const browser = visitor(address)
  const page = await browser.signIn(await browser.open('/account'), guest.email, guest.password)
  const account = page.text.includes('invitations/accept') ? page : await browser.open('/account')
  const at = account.text.indexOf('<form method="post" action="/account/invitations/accept"')
  t.equal((await browser.send(formIn({ ...account, text: account.text.slice(at) }), {})).status, 303)

  const email = `new-${o.toLowerCase()}@nimbus.example`
  const sent = mail.mails.length
  const invited = await call('POST', members, { email, role: 'guest', ...place })
  await until(async () => mail.mails.slice(sent).some(({ to }) => to[0] === email))
  const { text } = mail.mails.slice(sent).find(({ to }) => to[0] === email)!
  const stranger = visitor(address)
  const form = formIn(await stranger.open(/^http:\S+(\/account\/invitation\/\S+)$/m.exec(text)![1]!))
  t.equal((await stranger.send(form, { name: 'Kim Quill', password: 'correct horse battery' })).status, 303)

  const people = (await call('GET', members)).body.data as { id: string, attributes: { email: string, role: string } }[]
  for (const [of, { body }] of [[guest.email, answer], [email, invited]] as const) {
    const person = people.find(({ attributes }) => attributes.email === of)!
    t.equal(person.attributes.role, 'guest')
    const { projects } = (await call('GET', `${members}/${person.id}/access`)).body.data.attributes
    t.match(projects, [{ slug: 'orbit', teams: [{ role: 'developer', restrictions: [{ target: 'backend', environment: 'live' }] }] }])
    const joined = (await events()).filter(({ details }) => details.invitation === body.data.id)
    t.ok(joined.every(({ actor_type, actor_id }) => actor_type === 'user' && actor_id === Number(person.id)))
    t.match(joined.map(({ action }) => action), [/member\.join/, ...of === email ? [] : [/team\.create/, /team-project/], /team-member\.create/])
  }
  t.match((await teams()).map(({ attributes }) => attributes.member_count), [2])
})

t.test('an invitation to a place is accepted while a long operation holds the project, also its deletion', {
  skip: service.database.kind === 'embedded' && 'the embedded database has one connection'
}, async (t) => {
  const { o, call, invite, accept, teamsOf } = await nimbus()
  const first = await invite({ place: LIVE, place_role: 'member' })
  await service.database.longTransactions.transaction(async (db) => {
    await db.execute(sql`SELECT FROM projects WHERE organization_id = ${o} FOR NO KEY UPDATE`)
    t.equal((await accept(first.guest, first.answer)).status, 200)
  })
  t.equal((await teamsOf(first.guest)).length, 1)

  // A long deletion locks the project before the acceptance, and deletes after it.
  await service.write(`INSERT INTO environments (id, organization_id, project_id, target_id, name, slug, status, is_production)
    SELECT lpad(n::text, 26, '0'), organization_id, project_id, target_id, name, 'e-' || n, status, is_production
    FROM environments, generate_series(1, ${MAX_LEVELS_OF_SHORT_DELETION}) n
    WHERE organization_id = '${o}' AND slug = 'live'`)
  const invited = []
  for (let i = 0; i < 3; i++) invited.push(await invite({ place: LIVE, place_role: 'developer' }))
  const [deleted, ...accepted] = await Promise.all([
    call('DELETE', `/${o}/orbit/backend`), ...invited.map(async ({ guest, answer }) => accept(guest, answer))
  ])
  t.equal(deleted.status, 204)
  t.strictSame(accepted.map(({ status }) => status), [200, 200, 200])
  t.equal((await service.sql(`SELECT FROM team_projects WHERE organization_id = '${o}'`)).length, 0)
})
