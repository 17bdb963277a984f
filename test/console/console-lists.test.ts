// runs: one database; 60 s
import type { Browser, Page } from 'playwright-core'
import t, { type Test } from 'tap'
import { launch, openWindow, signIn, skip } from '../helpers/browser.ts'
import { button, follow, look, said, visitConsole, type Visit } from '../helpers/console-window.ts'
import { makePerson, type Person } from '../helpers/people.ts'
import { until } from '../helpers/until.ts'

// Imports and lists of the console in Chromium.

let browser: Browser
t.before(async () => { if (!skip) browser = await launch() })
t.teardown(async () => browser?.close())

/** Opens the dialog of imports, which closes after each of them. */
async function openImport (page: Page) {
  await button(page, 'Import…').waitFor()
  if (!await page.getByRole('dialog').isVisible()) await button(page, 'Import…').click()
  await page.getByRole('dialog').waitFor()
}

/** A window that shows a level of a project with this document. */
async function withDocument (t: Test, plaintext: string, format = 'env'): Promise<Visit> {
  const visited = await visitConsole(t, browser, 1280)
  const { nimbus, page, url, rosa } = visited
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop', secret_format: format })
  if (plaintext !== '') await nimbus.call('POST', '/nimbus/secrets/store', { project: 'shop', plaintext })
  await page.goto(`${url}/console/nimbus/shop/-/level`)
  await signIn(page, rosa)
  await openImport(page)
  return visited
}

async function preview (page: Page, text: string) {
  await openImport(page)
  // Chromium takes many seconds to type thousands of lines.
  if (text.length < 5_000) await page.getByLabel('Text to import').fill(text)
  else await page.getByLabel('Upload a file').setInputFiles({ name: '.env', mimeType: 'text/plain', buffer: Buffer.from(text) })
  await button(page, 'Preview').click()
  return page.locator('.preview')
}
const store = async (page: Page) => button(page.locator('.preview'), 'Import').click()

const documentOf = async ({ nimbus }: Visit) =>
  (await nimbus.call('GET', '/nimbus/shop/secrets?decrypt=true')).body.data.attributes.levels.project?.content as string | undefined

t.test('an import keeps the names that the text does not have, unless a person says otherwise', { skip }, async (t) => {
  const visited = await withDocument(t, '# mine\nA=1\nB=2\n')
  const { page } = visited
  const plan = await preview(page, 'B=3\nC=a$b\n')
  await plan.getByText('Adds 1').waitFor()
  t.match(await plan.innerText(), /Adds 1\s+C\s+Changes 1\s+B\s+Some programs read other values/, 'no name is removed')
  t.equal(await plan.locator('.removes').count(), 0)
  await store(page)
  await said(page, 'Imported into shop.')
  t.equal(await documentOf(visited), "# mine\nA=1\nB=3\nC='a$b'\n", 'the comment stays, too')
  await button(page, 'Undo').click()
  await said(page, 'Undone: shop is as it was before.')
  t.equal(await documentOf(visited), '# mine\nA=1\nB=2\n')

  await openImport(page)
  await page.getByLabel('Keep the names').uncheck()
  await preview(page, 'B=3\n')
  await plan.getByText('Removes 1').waitFor()
  const [red, ink] = await page.evaluate(`[document.querySelector('.removes dt'), document.querySelector('.changes dt')]
    .map((element) => getComputedStyle(element).color)`) as [string, string]
  t.not(red, ink, 'what is removed stands out')
  await look(t, page, 'an import that removes names')
  await store(page)
  await said(page, 'Imported into shop.')
  t.equal(await documentOf(visited), 'B=3\n')
})

t.test('an import from another format warns of the values as it writes them', { skip }, async (t) => {
  const visited = await withDocument(t, 'A=1\n')
  const { page } = visited
  await page.getByLabel('Format of the text').selectOption('json')
  const plan = await preview(page, '{"A": "it\'s \\"x\\"", "B": "a$b"}')
  await plan.getByText('A: other programs, such as shells, may not read the value without quotes.').waitFor()
  t.equal(await plan.locator('.warnings li').count(), 1)
  await store(page)
  await said(page, 'Imported into shop.')
  t.equal(await documentOf(visited), 'A=it\'s "x"\nB=\'a$b\'\n')
})

t.test('an import of .env warns of the text, and of the values that a change writes differently', { skip }, async (t) => {
  const visited = await withDocument(t, 'A=1\n')
  const { page } = visited
  const plan = await preview(page, 'A=it\'s "x"; y\nB=b#c\nC=`c`\nD=it\'s "d"\nE=e\n')
  await plan.locator('.warnings li').first().waitFor()
  t.same((await plan.locator('.warnings li').allInnerTexts()).map((line) => /^(?:Line \d: )?\w: \w+ \w+/.exec(line)![0]), [
    'Line 2: B: the value', 'Line 3: C: a shell', 'A: a shell', 'D: other programs'
  ])
  await store(page)
  await said(page, 'Imported into shop.')
  t.equal(await documentOf(visited), 'A=`it\'s "x"; y`\nB=b\nC=c\nD=it\'s "d"\nE=e\n')
})

t.test('the first import of a level keeps the text as it is', { skip }, async (t) => {
  const visited = await withDocument(t, '')
  const text = '# head\nA=1\n\nexport B=2\n'
  await preview(visited.page, text)
  await store(visited.page)
  await said(visited.page, 'Imported into shop.')
  t.equal(await documentOf(visited), text)
})

t.test('a long import is sent in parts, and one undo takes all of them back', { skip }, async (t) => {
  const visited = await withDocument(t, 'KEPT=1\nN0=old\n')
  const { page, nimbus } = visited
  const text = Array.from({ length: 2500 }, (_, i) => `N${i}=${i}\n`).join('')
  const plan = await preview(page, text)
  await plan.getByText('It is imported in 3 parts, each with a version.').waitFor()
  t.match(await plan.innerText(), /Adds 2499[^]*and 2299 more[^]*Changes 1\s+N0/)
  await store(page)
  await said(page, 'Imported into shop.')
  const names = async () => (await nimbus.call('GET', '/nimbus/shop/secrets/names')).body.meta.total as number
  t.equal(await names(), 2501)
  await button(page, 'Undo').click()
  await said(page, 'Undone: shop is as it was before.')
  t.equal(await documentOf(visited), 'KEPT=1\nN0=old\n')

  // Another person changes the level between two parts.
  await preview(page, text)
  let count = 0
  await page.route('**/shop/secrets', async (route) => {
    if (++count === 2) await nimbus.call('PATCH', '/nimbus/shop/secrets', { set: { THEIRS: '1' } })
    await route.continue()
  })
  await store(page)
  await page.getByRole('alert').getByText('Only a part is imported yet').waitFor()
  t.equal(await names(), 1002)
  await page.unroute('**/shop/secrets')
  await plan.getByText('Adds 1500').waitFor()
  await store(page)
  await until(async () => await names() === 2502)
})

t.test('a YAML text is imported if it removes no name, and else says how to keep the names', { skip }, async (t) => {
  const visited = await withDocument(t, 'A: 1\nB: 2\n', 'yaml')
  const { page } = visited
  await preview(page, 'A: 2\n')
  await page.getByRole('alert').getByText('The text lacks names of the level, such as B.').waitFor()
  await page.getByLabel('Keep the names').uncheck()
  await preview(page, 'A: 2\n')
  await page.locator('.preview').getByText('Removes 1').waitFor()
  await page.getByLabel('Keep the names').check()
  await preview(page, 'A: 2\nB: 2\nC: [1]\n')
  await store(page)
  await said(page, 'Imported into shop.')
  t.equal(await documentOf(visited), 'A: 2\nB: 2\nC: [1]\n')
  await openImport(page)
  await page.getByLabel('Format of the text').selectOption('json')
  await preview(page, '{"A": true}')
  await page.locator('.preview').getByText('Changes 1').waitFor()
  await store(page)
  await until(async () => await documentOf(visited) === 'A: true\nB: 2\nC: [1]\n')
})

t.test('an import of a project whose key only people hold keeps names, also from another format', { skip }, async (t) => {
  const { page, url, rosa } = await visitConsole(t, browser, 1280)
  await page.goto(`${url}/console/nimbus`)
  await signIn(page, rosa)
  await page.getByLabel('Name of the project').fill('Vault')
  await page.getByLabel('Import (optional)').fill('# mine\nA=1\nB="2"b\n')
  await page.getByLabel('Only your people').check()
  await button(page, 'Create project').click()
  await page.getByRole('alert').getByText(/^Line 3: there is text after the closing quote, .*Write it's as "it's"\.$/).waitFor()
  await page.getByLabel('Import (optional)').fill('# mine\nA=1\nB=2#b\n')
  await button(page, 'Create project').click()
  await page.getByRole('heading', { name: /Vault/, level: 1 }).waitFor()
  await said(page, 'Created the project Vault. Some programs read other values from line 3 of its text.')
  // The key stays open, because the page is not loaded again.
  await page.evaluate("history.pushState(null, '', '/console/nimbus/vault/-/level'); dispatchEvent(new PopStateEvent('popstate'))")
  await openImport(page)
  const plan = await preview(page, 'A=1\nB=2\n')
  await plan.getByText('Changes 1').waitFor()
  t.match(await plan.innerText(), /Changes 1\s+B\s/, 'other programs read 2#b')
  await preview(page, 'B=3\nC=4\n')
  await plan.getByText('Adds 1').waitFor()
  t.match(await plan.innerText(), /Adds 1\s+C\s+Changes 1\s+B\s/)
  t.notMatch(await plan.innerText(), /Removes/)
  await store(page)
  await said(page, 'Imported into vault.')
  await preview(page, 'D=it\'s "x"; y\n')
  await plan.getByText('D: a shell runs what is in backticks').waitFor()
  await page.getByLabel('Format of the text').selectOption('json')
  await page.getByLabel('Keep the names').uncheck()
  await preview(page, '{"C": "5"}')
  await plan.getByText('Removes 2').waitFor()
  await page.getByLabel('Keep the names').check()
  await preview(page, '{"C": "it\'s \\"5\\""}')
  await plan.getByText('C: other programs, such as shells, may not read the value without quotes.').waitFor()
  t.match(await plan.innerText(), /Changes 1\s+C\s/)
  await store(page)
  await until(async () => await plan.count() === 0)
  await button(page, 'Edit the document').click()
  t.equal(await page.getByLabel('Document of vault').inputValue(), '# mine\nA=1\nB=3\nC=it\'s "5"\n')
})

/** A window of the owner at a page of the organization. */
async function open (t: Test, path: string, prepare: (visit: Visit) => Promise<unknown>): Promise<Visit> {
  const visited = await visitConsole(t, browser, 1280)
  await prepare(visited)
  await visited.page.goto(`${visited.url}/console/nimbus/-/${path}`)
  await signIn(visited.page, visited.rosa)
  await visited.page.getByRole('heading', { level: 1 }).waitFor()
  return visited
}

/** Creates a token of the organization. */
async function createOurs (page: Page): Promise<string> {
  await button(page, 'Create token…').click()
  await page.getByLabel('Name of the token').fill('Ours')
  await page.getByLabel('Belongs to').selectOption('organization')
  await page.getByText('It stays when you leave.').waitFor()
  t.match(await page.getByLabel('Expires after').locator('option').allInnerTexts(), ['Never', 'a year', '90 days'])
  await button(page, 'Create token').click()
  return page.locator('.once .value').innerText()
}

const rowsOf = async (page: Page, table: string) => page.getByRole('region', { name: table, exact: true }).locator('tbody tr').allInnerTexts()

/** Waits until a table has one row, which matches. */
const shows = async (page: Page, table: string, row: RegExp) => until(async () => {
  const rows = await rowsOf(page, table)
  return rows.length === 1 && row.test(rows[0]!)
})

t.test('the audit page says who did what where, and is filtered by pick lists', { skip }, async (t) => {
  const { page, nimbus, rosa } = await open(t, 'audit', async ({ nimbus, service }) => {
    await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
    await nimbus.call('POST', '/nimbus/projects', { name: 'Garden' })
    await nimbus.call('POST', '/nimbus/shop/targets', { name: 'Backend' })
    await nimbus.call('POST', '/nimbus/shop/backend/environments', { name: 'Live' })
    await nimbus.call('PATCH', '/nimbus/shop/backend/live/secrets', { set: { A: '1' } })
    await nimbus.call('PATCH', '/nimbus/garden/secrets', { set: { B: '1' } })
    const { body } = await nimbus.call('POST', '/organizations/nimbus/api-keys', { name: 'Robot', abilities: ['secret:write', 'secret:decrypt'] })
    const headers = { authorization: `Bearer ${body.token}`, 'content-type': 'application/json' }
    await service.inject({ method: 'PATCH', url: '/api/v1/nimbus/garden/secrets', headers, payload: { set: { B: '2' } } })
  })
  const events = page.getByRole('region', { name: 'Events', exact: true })
  await events.waitFor()
  t.ok((await rowsOf(page, 'Events')).some((row) => /secret\.store\s+shop \/ backend \/ live/.test(row)), 'the place is named')
  const signIns = events.getByRole('row').filter({ hasText: 'session.create' })
  t.strictSame((await signIns.first().locator('th, td').allInnerTexts()).slice(1, 4), [rosa.name, `session.create\n${rosa.name}`, ''], 'a person is no place')
  t.ok((await rowsOf(page, 'Events')).some((row) => new RegExp(`\\d{4}-\\d\\d-\\d\\d \\d\\d:\\d\\d\\s+${rosa.name}\\s`).test(row)), 'the person is named')

  await button(page, 'Filter…').click()
  await page.getByText('Events of earlier releases have no place').waitFor()
  const filtered = async (choose: () => Promise<unknown>) => {
    await choose()
    const answer = page.waitForResponse((response) => /\/audit-events\?/.test(response.url()))
    await button(page, 'Filter').click()
    await (await answer).finished()
    await until(async () => await page.locator('.late').count() === 0)
    return rowsOf(page, 'Events')
  }
  const pick = async (label: string, option: string | { label: string }) =>
    page.getByLabel(label, { exact: true }).selectOption(option)
  await look(t, page, 'the filters of the audit page')
  for (const row of await filtered(() => pick('What', 'secret.store'))) t.match(row, 'secret.store')
  const inGarden = await filtered(() => pick('Where', 'garden'))
  t.equal(inGarden.length, 2)
  for (const row of inGarden) t.match(row, /secret\.store\s+garden/)
  await pick('Where', 'shop')
  const inLive = await filtered(() => pick('Part of the project', 'backend/live'))
  t.equal(inLive.length, 1)
  t.match(inLive[0]!, 'shop / backend / live')
  await pick('Where', '')
  t.match(await filtered(() => pick('Who', { label: 'Robot (token)' })), [/Robot \(token\)\s+secret\.store\s+garden/])
  await pick('What', '')
  const ofRosa = await filtered(() => pick('Who', `user:${rosa.id}`))
  t.ok(ofRosa.length > 0)
  for (const row of ofRosa) t.match(row, rosa.name)
  await pick('Who', '')
  t.ok((await filtered(() => pick('When', '1'))).length >= 3)
  await pick('When', 'period')
  await page.getByLabel('Until', { exact: true }).fill('2020-01-01T00:00')
  await filtered(async () => {})
  await page.getByText('No event matches the filter.').waitFor()
  await pick('When', '')
  const { body } = await nimbus.call('GET', '/nimbus/audit-events?action=secret.store&per_page=1')
  const { type, id } = body.data[0].attributes.resource
  t.equal((await filtered(() => page.getByLabel('Id of what was touched').fill(`${type}:${id}`))).length > 0, true)
  await button(page, 'Show events by day').click()
  await page.getByRole('figure').waitFor()
})

t.test('tokens are a table with search: who made each, what it reaches, when it ends, and whose it is', { skip }, async (t) => {
  const { page, rosa } = await open(t, 'tokens', async ({ nimbus }) => {
    await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
    for (const [name, days] of [['Deploy of the shop', 10], ['Nightly', 60]] as const) {
      await nimbus.call('POST', '/organizations/nimbus/api-keys', {
        name, abilities: ['secret:read', 'secret:decrypt'], restrictions: [{ project: 'shop' }], expires_at: new Date(Date.now() + days * 86_400_000).toISOString()
      })
    }
  })
  const table = page.getByRole('region', { name: 'Tokens', exact: true })
  await table.waitFor()
  const row = async (name: string) => (await rowsOf(page, 'Tokens')).find((text) => text.startsWith(name))!
  t.match(await row('Nightly'), /secret \(read, decrypt\)\s+Shop\s+Test token[^]*\d{4}-\d\d-\d\d \d\d:\d\d\s+never/)
  await page.getByText('One token ends within 14 days.').waitFor()
  await button(page, 'Show them').click()
  await shows(page, 'Tokens', /^Deploy of the shop/)
  await page.getByLabel('Which tokens').selectOption('')
  await page.getByLabel('Search by name').fill('NIGHT')
  await shows(page, 'Tokens', /^Nightly/)
  t.equal(await page.evaluate('document.activeElement.name'), 'search', 'the focus stays')
  await page.getByLabel('Search by name').fill('')
  await until(async () => (await rowsOf(page, 'Tokens')).length > 1)

  // A token of the organization has no end, and stays when its maker goes.
  const value = await createOurs(page)
  await page.getByLabel('Which tokens').selectOption('organization')
  await until(async () => (await row('Ours') ?? '') !== '')
  t.match(await row('Ours'), new RegExp(`${rosa.name}\\s+of the organization\\s+never`))
  await look(t, page, 'the table of tokens')
  await button(page, /^Rotate Ours/).click()
  await page.getByRole('dialog').getByRole('button', { name: 'Rotate', exact: true }).click()
  await until(async () => await page.locator('.once .value').innerText() !== value)
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  t.match(await row('Ours'), 'of the organization', 'a rotation keeps the owner')
})

t.test('people are a table with search; a removal and a lower role list their tokens of the organization', { skip }, async (t) => {
  let people: Person[] = []
  const { page, url } = await open(t, 'people', async ({ service, nimbus }) => {
    people = [await makePerson(service, { [nimbus.organization]: 'administrator' }), await makePerson(service, { [nimbus.organization]: 'member' })]
  })
  const [ada, ben] = people as [Person, Person]
  await page.getByRole('region', { name: 'Members', exact: true }).waitFor()
  t.equal((await rowsOf(page, 'Members')).length, 3)
  const { x, width } = (await button(page, /^Remove Person/).first().boundingBox())!
  t.ok(x + width <= 1280 - 24, 'the buttons of a row are in the window')
  await page.getByLabel('Search by name or address').fill(ben.email.slice(0, -8).toUpperCase())
  await shows(page, 'Members', new RegExp(`^${ben.name}\\s+${ben.email}\\s+Member\\s+\\d{4}-\\d\\d-\\d\\d`))
  await page.getByLabel('Search by name or address').fill('')
  await until(async () => (await rowsOf(page, 'Members')).length === 3)

  const { page: other } = await openWindow(t, browser)
  await other.goto(`${url}/console/nimbus/-/tokens`)
  await signIn(other, ada)
  await createOurs(other)
  for (const opener of [`Role ${ada.name}`, `Remove ${ada.name}`]) {
    await button(page, new RegExp(`^${opener}`)).click()
    const dialog = page.getByRole('dialog')
    await dialog.getByText(`${ada.name} made this token of the organization.`).waitFor()
    t.match(await dialog.innerText(), 'Ours')
    await look(t, page, opener)
    await page.keyboard.press('Escape')
  }
  await button(page, new RegExp(`^Role ${ben.name}`)).click()
  await page.getByLabel(`Role of ${ben.name}`).selectOption('developer')
  await button(page, 'Save role').click()
  await said(page, `${ben.name} is Developer now.`)
  await page.getByRole('dialog').waitFor({ state: 'detached' })
  const changed = new RegExp(`${ben.email}\\s+Developer`)
  await until(async () => changed.test((await rowsOf(page, 'Members')).join('\n')))
  await button(page, new RegExp(`^Access ${ben.name}`)).click()
  await page.getByRole('dialog').getByText('In every project, as Developer').waitFor()
  await look(t, page, 'the access of a member')
})

t.test('on a phone a page opens at its top, and each row of a list is a block', { skip }, async (t) => {
  const { page, url, rosa } = await visitConsole(t, browser, 390)
  await page.goto(`${url}/console/nimbus`)
  await signIn(page, rosa)
  await page.getByRole('heading', { name: 'Nimbus', level: 1 }).waitFor()
  await follow(page, 'People')
  await page.getByRole('region', { name: 'Members', exact: true }).waitFor()
  t.equal(await page.evaluate('scrollY'), 0)
  const [isWhole, label, isAddressBelow] = await page.evaluate(`(() => {
    const region = document.querySelector('.rows')
    const [heading, address] = region.querySelectorAll('tbody th, tbody td')
    return [
      region.scrollWidth <= region.clientWidth, getComputedStyle(address, '::before').content,
      address.getBoundingClientRect().top >= heading.getBoundingClientRect().bottom
    ]
  })()`) as [boolean, string, boolean]
  t.strictSame([isWhole, label, isAddressBelow], [true, '"Address"', true])
})

t.test('a search has the focus, a filter says what it seeks, and a restore shows its undo', { skip }, async (t) => {
  const { page, url, rosa, nimbus } = await visitConsole(t, browser, 390)
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  await nimbus.call('POST', '/nimbus/shop/targets', { name: 'Backend' })
  for (const plaintext of ['A=1', 'A=2']) await nimbus.call('POST', '/nimbus/secrets/store', { project: 'shop', plaintext })
  await nimbus.call('POST', '/nimbus/secrets/store', { project: 'shop', target: 'backend', plaintext: 'B=1' })
  await page.goto(`${url}/console/nimbus/shop`)
  await signIn(page, rosa)
  await page.getByLabel(/^Missing in an environment/).check()
  await page.getByLabel('Only names that contain').fill('a')
  await page.getByText('No name that is missing contains this text.').waitFor()
  await page.getByLabel(/^All names/).check()
  await page.getByLabel('Level', { exact: true }).selectOption({ index: 0 })
  await button(page, /^Set A in/).click()
  const dialog = page.getByRole('dialog')
  await dialog.waitFor()
  t.equal(await page.evaluate('document.activeElement.title'), 'Close', 'no keyboard covers a value that is there')
  await button(dialog, 'History').click()
  await button(dialog, /^Restore value/).click()
  await said(page, /^Restored A in/)
  await dialog.waitFor({ state: 'detached' })
  await button(page, 'Undo').click()
  await said(page, /^Undone/)
  await page.locator('main').focus()
  await page.keyboard.press('/')
  await dialog.waitFor()
  await page.keyboard.type('b')
  await page.keyboard.press('Enter')
  await dialog.getByRole('link').first().waitFor()
})
