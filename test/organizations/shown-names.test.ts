// runs: one database; 7 s
import { sql } from 'drizzle-orm'
import t from 'tap'
import { describeVerified } from '../../src/commands/audit/audit.ts'
import { rowOf } from '../../src/commands/common/stdio.ts'
import { lineOfToken } from '../../src/commands/people/tokens.ts'
import { addUser, renewLink } from '../../src/commands/people/users.ts'
import { connect } from '../../src/db/database.ts'
import {
  invitation, membershipChanged, membershipInvitation, newLink, passwordChanged, passwordReset
} from '../../src/mail/messages.ts'
import { startApp } from '../helpers/app.ts'
import { command, scratchDirectory } from '../helpers/process.ts'
import { beside } from '../helpers/statements.ts'
import { formIn, visitor } from '../helpers/visitor.ts'

t.setTimeout(60_000)
const service = await startApp(t)
const owner = await service.organization()
const { organization } = owner

// One character of each range, and both ends of the range.
const FORBIDDEN = [
  0x00, 0x09, 0x0a, 0x0d, 0x1b, 0x1f, 0x7f, 0x80, 0x85, 0x9b, 0x9f, 0x61c, 0x200e, 0x200f, 0x2028, 0x2029, 0x202a,
  0x202e, 0x2066, 0x2069
]
const ALLOWED = [
  'Orbit', 'a\u200cb', '👨‍👩‍👧', 'می‌خواهم', 'Würfel & Söhne', 'שלום', '日本', 'x\u00a0y', '\u2027\u202f\u2065\u206a', 'https://evil.example', '~'
]
const withCharacter = (code: number) => `Or${String.fromCharCode(code)}bit`
const shown = (code: number) => `U+${code.toString(16).padStart(4, '0')}`

const CREATED = [
  ['POST', '/projects', {}], ['POST', '/orbit/targets', {}], ['POST', '/orbit/backend/environments', { status: 'live' }],
  ['POST', `//api/v1/organizations/${organization}/teams`, {}],
  ['POST', `//api/v1/organizations/${organization}/api-keys`, { abilities: ['secret:read'] }]
] as const

await owner.call('POST', `/${organization}/projects`, { name: 'Orbit', slug: 'orbit' })
await owner.call('POST', `/${organization}/orbit/targets`, { name: 'Backend', slug: 'backend' })
await owner.call('POST', `/${organization}/orbit/backend/environments`, { name: 'Live', slug: 'live', status: 'production' })
const at = (path: string) => path.startsWith('//') ? path : `/${organization}${path}`

t.test('every operation refuses a new name with a control or direction character; other names are stored', async (t) => {
  for (const [method, path, more] of CREATED) {
    for (const code of FORBIDDEN) {
      const { status, body } = await owner.call(method, at(path), { ...more, name: withCharacter(code) })
      t.equal(status, 422, `${path} ${shown(code)}`)
      t.match(body.errors, { name: [code === 0 ? /./ : /^must be a text of 1 to 255 characters that are not all spaces, without control and direction characters, such as Orbit$/] })
    }
    for (const name of ALLOWED) {
      const { status, body } = await owner.call(method, at(path), { ...more, name })
      t.equal(status, 201, `${path} ${name} ${JSON.stringify(body.errors)}`)
      t.equal((body.data?.attributes ?? body.api_key).name, name)
    }
    for (const name of [' ', '\u3000', '', 'x'.repeat(256)]) t.equal((await owner.call(method, at(path), { ...more, name })).status, 422)
  }
  const { status } = await owner.call('POST', at('/projects'), { name: 'Lines', description: 'two\nlines \u202e' })
  t.equal(status, 201, 'a description is no name')
})

t.test('an update accepts the stored name, whatever it is, and no other name of this kind', async (t) => {
  const team = (await owner.call('POST', `//api/v1/organizations/${organization}/teams`, { name: 'Old' })).body.data
  const token = (await owner.call('POST', `//api/v1/organizations/${organization}/api-keys`, { name: 'Old', abilities: ['secret:read'] })).body
  const { id } = token.api_key
  const old = 'Old\n\u202ename'
  for (const [table, where, path] of [
    ['organization_counters', 'true', `//api/v1/organizations/${organization}`],
    ['projects', "slug = 'orbit'", at('/orbit')],
    ['targets', "slug = 'backend'", at('/orbit/backend')],
    ['environments', "slug = 'live'", at('/orbit/backend/live')],
    ['teams', `id = '${team.id}'`, `//api/v1/organizations/${organization}/teams/${team.attributes.slug}`],
    ['api_tokens', `id = ${id}`, `//api/v1/organizations/${organization}/api-keys/${id}`]
  ] as const) {
    const change = table === 'organization_counters' ? service.sql : service.write
    await change(`UPDATE ${table} SET name = E'Old\\n\\u202ename' WHERE organization_id = '${organization}' AND ${where}`)
    const patch = (name: string) => owner.call('PATCH', path, { name })
    const kept = await patch(old)
    t.equal(kept.status, 200, `${table}: ${kept.text}`)
    const refused = await patch(`${old}!`)
    t.equal(refused.status, 422, table)
    t.match(refused.body.errors, { name: [/^must be a text of 1 to 255 .* without control and direction characters/] })
    t.equal((await patch('New')).status, 200, table)
    t.equal((await patch(old)).status, 422, `${table}: it is not stored any more`)
  }
})

t.test('a person chooses a name without such characters, and may keep the stored one', async (t) => {
  const address = await service.listen()
  const browser = visitor(address)
  const made = await addUser(service.database, address, { email: 'old@nimbus.example', name: 'Old\u009bname' })
  const page = await browser.open(made.link)
  const answer = await browser.send(formIn(page), { name: 'Ro\u202esa', password: 'a password of her own' })
  t.equal(answer.status, 422)
  t.match(answer.text, 'Your name must not have control characters')
  t.equal((await browser.send(formIn(page), { name: 'Old\u009bname', password: 'a password of her own' })).status, 303)
})

t.test('CR-60: the commands refuse such names, and print a row for each name that is stored', async (t) => {
  const env = { DATA_DIR: scratchDirectory(t) }
  t.equal((await command(['init', '--organization', 'Nimbus', '--email', 'rosa@nimbus.example'], env)).code, 0)
  for (const name of ['two\nlines', '\x1b[2J', '\u009b2J', '\u202eevil', 'a\tb', ' ']) {
    for (const args of [
      ['organization', 'add', '--name', name], ['token', 'add', '--organization', 'nimbus', '--name', name],
      ['user', 'add', '--email', 'x@nimbus.example', '--name', name], ['init', '--organization', name, '--email', 'x@nimbus.example'],
      ['client', 'add', '--id', 'x', '--redirect-uri', 'https://a.example/', '--name', name]
    ]) t.match(await command(args, env), { code: 2, stdout: '', stderr: /NAME \(at most 255 characters, without control and direction characters\)\n$/ }, `${args[0]} ${JSON.stringify(name)}`)
  }
  for (const name of ['👨‍👩‍👧', 'می‌خواهم']) {
    t.match(await command(['organization', 'add', '--name', name], env), { code: 0 })
    t.match(await command(['user', 'add', '--email', `u${name.codePointAt(0)}@nimbus.example`, '--name', name], { ...env, PUBLIC_URL: 'https://a.example' }), { code: 0 })
  }
  const database = await connect({ dir: `${env.DATA_DIR}/postgres`, pool: 1 })
  const old = 'Old\nforged\tactive\x1b[31m\u009b\u202e\u2028\x7f'
  for (const table of ['organization_counters', 'oauth_clients']) {
    await beside(async () => await database.db.execute(sql`UPDATE ${sql.identifier(table)} SET name = ${old}::text`))
  }
  await database.close()
  const escaped = 'Old\\u000aforged\\u0009active\\u001b[31m\\u009b\\u202e\\u2028\\u007f'
  for (const [args, columns] of [[['organization', 'list'], 5], [['client', 'list'], 4]] as const) {
    const { stdout } = await command([...args], env)
    const lines = stdout.split('\n').slice(0, -1)
    t.ok(lines.length >= 3, args[0])
    for (const line of lines) {
      t.equal(line.split('\t').length, columns)
      t.match(line, escaped)
    }
    t.notMatch(stdout, /[^\P{C}\n\t]/u)
  }
})

t.test('a cell is a cell, and what a file says of an organization is one line', (t) => {
  t.equal(rowOf(1, 'a\tb\nc', 'می‌خواهم'), '1\ta\\u0009b\\u000ac\tمی‌خواهم')
  t.equal(
    describeVerified({ organization: 'X: 1\nY: 12', after: null, events: 1, last: 1, broken: null } as never),
    'X: 1\\u000aY: 12: 1 events verified, up to 1')
  const at = new Date(0)
  t.equal(lineOfToken('nimbus', {
    id: 1, token_prefix: 'a', token_suffix: 'b', name: 'CI\n2\tnimbus', abilities: ['*'], created_at: at, last_used_at: null, expires_at: null
  } as never), '1\tnimbus\ta…b\tCI\\u000a2\\u0009nimbus\t*\t1970-01-01\tnever\tnever')
  t.end()
})

t.test('a mail quotes a name, cuts it, and leaves it out if it could be a link', (t) => {
  const link = 'https://strongroom.example/account/set-password/x'
  const account = { email: 'a@b.example', service: 'https://strongroom.example', link }
  const inviter = (type: 'user' | 'api_token', name: string) => ({ type, name })
  const mails = (name: string) => [
    invitation({ ...account, name, organization: { name, role: 'owner' } }), newLink({ ...account, name }),
    passwordReset({ ...account, name, minutes: 30 }),
    passwordChanged({ ...account, name, from: 'Firefox', at: new Date(0), keepsSessions: false }),
    ...(['user', 'api_token'] as const).map((type) =>
      membershipInvitation({ ...account, organization: name, role: 'owner', inviter: inviter(type, name) })),
    membershipChanged({ ...account, name, organization: name, role: null }),
    membershipChanged({ ...account, name, organization: name, role: 'billing_manager' })
  ]
  const [plain] = mails('Nimbus')
  t.match(plain!.text, /^Hello "Nimbus",\n\nyou have an account .* You are owner in the organization "Nimbus"\.\n/)
  t.match(mails('Nimbus').map(({ subject }) => subject).slice(4), [
    'An invitation to "Nimbus" on Strongroom', 'An invitation to "Nimbus" on Strongroom',
    'You are no longer a member of "Nimbus" on Strongroom', 'Your role in "Nimbus" on Strongroom'
  ])
  t.match(mails('Nimbus')[5]!.text, /^the API token "Nimbus" invites you to the organization "Nimbus" at /m)
  const lines = mails('Nimbus').map(({ text }) => text.split('\n').length)
  for (const name of [
    'https://evil.example', 'see HTTP://evil', 'WWW.evil', 'evil.example', 'Rosa (evil.co)', 'J.R. Smith', 'evil1.com', 'evil。com', 'x ftp://1',
    '\\\\10.1.2.3\\share', 'file:x', 'mailto:x', 'tel:+44', '203.0.113.9/login', 'evil.\u200dcom', 'evil.\ufe0fcom', 'evil.\u034fcom', 'w\u180bww.x', '\n'
  ]) {
    for (const [i, { subject, text }] of mails(name).entries()) {
      t.notMatch(subject + text.replaceAll(/https:\/\/strongroom\.example\S*|a@b\.example/g, ''), name.trim() || '""', `${i} ${name}`)
      t.equal(text.split('\n').length, lines[i])
    }
    t.match(mails(name)[4], { subject: 'An invitation to an organization on Strongroom', text: /^a member invites you to an organization at /m })
    t.match(mails(name)[5]!.text, /^an API token invites you/m)
    t.match(mails(name)[1]!.text, /^Hello,\n/)
  }
  for (const [name, seen] of [
    ['Acme 2.0', '"Acme 2.0"'], ['Acme Inc. Vienna', '"Acme Inc. Vienna"'], ['A\nlink:\u202e x\x1b', '"A link:  x"'],
    ['say "hi"', '"say \'hi\'"'], ['می‌خواهم', '"می‌خواهم"'], ['x'.repeat(60), `"${'x'.repeat(60)}"`],
    ['😀'.repeat(61), `"${'😀'.repeat(59)}…"`], [' x ', '"x"']
  ] as const) {
    for (const [i, { text }] of mails(name).entries()) {
      t.match(text, seen, `${i} ${name}`)
      t.equal(text.split('\n').length, lines[i], 'no other line')
    }
  }
  t.end()
})

t.test('a mail of the operator quotes names too', async (t) => {
  const made = await addUser(service.database, 'https://a.example', { email: 'q@nimbus.example', name: 'Quill' })
  t.match(made.message.text, /^Hello "Quill",$/m)
  t.match((await renewLink(service.database, 'https://a.example', 'q@nimbus.example')).message.text, /^Hello "Quill",$/m)
})
