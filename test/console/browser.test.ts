// runs: one database
import { createPasswordReset } from '../../src/repositories/people/password-resets.ts'
import { createPasswordLink } from '../../src/repositories/people/users.ts'
import { createServer, type IncomingMessage } from 'node:http'
import { writeFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { Browser, BrowserContextOptions, Locator, Page } from 'playwright-core'
import { base32 } from 'oslo/encoding'
import t, { type Test } from 'tap'
import { addClient } from '../../src/commands/people/clients.ts'
import { greet } from '../../src/commands/serve/greeting.ts'
import { hashToken } from '../../src/crypto/bearer.ts'
import { codeAt, stepAt } from '../../src/crypto/second-factor.ts'
import { FIRST_ORGANIZATION } from '../../schemas/organizations.ts'
import { SCOPES } from '../../schemas/scopes.ts'
import { startIsolatedApp, type Caller, type TestApp } from '../helpers/app.ts'
import { accessibilityProblems, launch, openWindow as openIn, signIn, skip, type Window } from '../helpers/browser.ts'
import { bill, invoicesOf, path as pathOf, subscribe } from '../helpers/billing.ts'
import { byTurns, LONG, sample } from '../helpers/long.ts'
import { authorizationUrl, makePerson, pkce, post } from '../helpers/people.ts'
import { scratchDirectory } from '../helpers/process.ts'
import { until } from '../helpers/until.ts'

// Checks that need a real browser: policies, popups, redirects, keyboard use and layout.

let browser: Browser
t.before(async () => { if (!skip) browser = await launch() })
t.teardown(async () => browser?.close())

/** A window of a browser without stored data. */
const openWindow = (t: { teardown (fn: () => unknown): void }, options: BrowserContextOptions = {}) =>
  openIn(t, browser, options)

const elsewhere = ({ requested }: Window, origin: string) =>
  requested.filter((url) => !url.startsWith(`${origin}/`) && !url.startsWith('data:') && !url.startsWith('blob:'))

// A service that listens on a port. With a path, PUBLIC_URL contains the path.
async function listen (
  t: { teardown (fn: () => unknown): void }, path?: string
): Promise<{ service: TestApp, url: string }> {
  if (path === undefined) {
    // This test has its own database, because its organizations have fixed slugs.
    const service = await startIsolatedApp(t)
    return { service, url: await service.app.listen({ host: '127.0.0.1', port: 0 }) }
  }
  const probe = createServer().listen(0, '127.0.0.1')
  await new Promise((resolve) => probe.once('listening', resolve))
  const { port } = probe.address() as AddressInfo
  await new Promise((resolve) => probe.close(resolve))
  const url = `http://127.0.0.1:${port}${path}`
  const service = await startIsolatedApp(t, { PUBLIC_URL: url })
  await service.app.listen({ host: '127.0.0.1', port })
  return { service, url }
}

let shared: ReturnType<typeof listen> | undefined
/** The service that most tests use. */
function started () {
  shared ??= listen(t)
  return shared
}

// Swagger UI.

async function openAuthorizations (page: Page): Promise<Locator> {
  await page.getByRole('button', { name: 'Authorize' }).first().click()
  return page.locator('.dialog-ux')
}

async function authorize (page: Page, token: string) {
  const dialog = await openAuthorizations(page)
  await dialog.getByLabel('auth-bearer-value').fill(token)
  await dialog.getByRole('button', { name: 'Apply credentials' }).click()
  await dialog.getByRole('button', { name: 'Close' }).first().click()
}

/** Opens an operation in Swagger UI, to send a request. */
async function open (page: Page, id: string): Promise<Locator> {
  // A filter expands the groups.
  await page.getByRole('searchbox', { name: 'Filter operations' }).fill(id)
  return openShown(page, id)
}

async function openShown (page: Page, id: string): Promise<Locator> {
  const operation = page.locator(`.opblock[id$="-${id}"]`)
  await operation.locator('.opblock-summary-control').click()
  await operation.getByRole('button', { name: 'Try it out' }).click()
  return operation
}

async function tryOut (page: Page, id: string): Promise<{ status: string, text: string }> {
  const operation = await open(page, id)
  await operation.getByRole('button', { name: 'Execute' }).click()
  const answer = operation.locator('.live-responses-table .response')
  return {
    status: (await answer.locator('.response-col_status').innerText()).trim(),
    text: await answer.locator('.response-col_description').innerText()
  }
}

for (const [what, path, host] of sample([
  ['as it starts', undefined, '127.0.0.1'], ['at another name of this machine', undefined, 'localhost'], [
    'below a path that PUBLIC_URL names', '/base', '127.0.0.1'
  ]
] as const, 3)) {
  t.test(`CR-46: Swagger UI ${what}: from the first page through sign-in and consent to an answer`, { skip }, async (t) => {
    const { service, url: own } = await (path === undefined ? started() : listen(t, path))
    const url = own.replace('127.0.0.1', host)
    const nimbus = await service.organization()
    const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
    const window = await openWindow(t)
    const { page } = window
    await page.goto(`${url}/docs`)
    t.equal((await tryOut(page, 'getUser')).status, '401', 'without a token')

    const dialog = await openAuthorizations(page)
    t.ok(await dialog.getByLabel('auth-bearer-value').isVisible(), 'a bearer token can be given')
    const oauth = dialog.locator('.auth-container', { hasText: 'authorizationCode with PKCE' })
    t.equal(await oauth.getByLabel('client_id:').inputValue(), 'swagger-ui')
    t.equal(
      await oauth.locator('input[type=checkbox]').count(), Object.keys(SCOPES).length, 'every scope can be chosen'
    )
    for (const scope of ['project:read', 'organization:read']) {
      await oauth.locator(`label[for$="${scope}-authorizationCode-checkbox-oauth"]`).click()
    }
    const opened = page.waitForEvent('popup')
    await oauth.locator('button.authorize').click()
    const popup = await opened
    await signIn(popup, rosa)
    await popup.getByRole('heading', { name: 'Allow API documentation to act for you?' }).waitFor()
    t.strictSame(await popup.getByRole('checkbox').evaluateAll((boxes) =>
      boxes.map((box) => (box as unknown as { value: string }).value)), ['project:read', 'organization:read'])
    const closed = popup.waitForEvent('close')
    await popup.getByRole('button', { name: 'Allow', exact: true }).click()
    await closed
    await oauth.getByText('Authorized', { exact: true }).waitFor()
    await oauth.getByRole('button', { name: 'Close' }).click()

    const user = page.locator('.opblock[id$="-getUser"]')
    const found = user.locator('.live-responses-table .response-col_status').getByText('200')
    const statuses: number[] = []
    page.on('response', (response) => { if (response.url().endsWith('/api/v1/user')) statuses.push(response.status()) })
    // After the sign-in, Swagger UI draws a document with other examples. A click meanwhile may have no effect.
    await until(async () => {
      await user.getByRole('button', { name: 'Execute' }).click()
      return found.waitFor({ timeout: 5_000 }).then(() => true, () => false)
    })
    t.match(await user.locator('.live-responses-table').innerText(), rosa.email)
    t.strictSame([...new Set(statuses)], [200], 'each request has the token')
    t.strictSame(window.wrongs, [])
    t.strictSame(elsewhere(window, new URL(url).origin), [])
    if (path !== undefined) {
      t.strictSame(window.requested.filter((asked) =>
        !asked.startsWith(`${url}/`) && !asked.endsWith('/favicon.ico')), [], 'everything is below the path')
    }
  })
}

t.test('CR-46: Swagger UI calls with the token of an organization, and keeps it nowhere', { skip }, async (t) => {
  const { service, url } = await started()
  const nimbus = await service.organization()
  const window = await openWindow(t)
  const { page } = window
  await page.goto(`${url}/docs`)
  await authorize(page, nimbus.token)
  const { status, text } = await tryOut(page, 'getOwnOrganization')
  t.equal(status, '200')
  t.match(text, nimbus.organization)
  t.strictSame(
    await page.evaluate('[Object.keys(localStorage), Object.keys(sessionStorage), document.cookie]'), [[], [], '']
  )
  t.strictSame(window.wrongs, [])
  t.strictSame(elsewhere(window, url), [])
})

t.test('Swagger UI: who has just started it explores the first organization with the examples as they stand', { skip }, async (t) => {
  const service = await startIsolatedApp(t)
  const printed = await greet(service, service.config, 0)
  const [, token] = /API token +(\S+)/.exec(printed)!
  const url = await service.app.listen({ host: '127.0.0.1', port: 0 })
  const window = await openWindow(t)
  const { page } = window
  await page.goto(url)
  await page.getByLabel('E-mail address').waitFor()
  t.equal(new URL(page.url()).searchParams.get('redirect_uri'), `${url}/console/`, 'the address alone leads to the console')
  await page.goto(`${url}/docs`)
  await page.locator('.opblock-tag-section').first().waitFor()
  t.strictSame(
    await page.locator('.info a:visible:not([href*=spdx])').evaluateAll((links) =>
      links.map((link) => (link as unknown as { href: string }).href)),
    ['openapi.yaml', 'openapi.json', 'openapi-3.0.json'].map((file) => `${url}/${file}`),
    'what clients are generated from, and not what this page reads'
  )

  const deprecated = page.locator('.opblock-tag-section').last()
  t.match(await deprecated.locator('.opblock-tag').innerText(), /^deprecated/)
  t.equal(await deprecated.locator('.opblock').count(), 0, 'the deprecated group is closed')
  await deprecated.locator('.opblock-tag').click()
  await deprecated.locator('.opblock').first().waitFor()

  await authorize(page, token!)
  for (const [id, expected] of [
    ['createProject', '201'], ['createTarget', '201'], ['createEnvironment', '201'], ['storeSecrets', '200'],
    ['retrieveSecrets', '200'], ['listVersions', '200'],
    ...LONG ? [['getOrganization', '200'], ['readEnvironmentSecrets', '200']] as const : []
  ] as const) {
    const { status, text } = await tryOut(page, id)
    t.equal(status, expected, `${id}: ${text.slice(0, 300)}`)
  }

  const link = await window.context.newPage()
  const open = link.locator('.opblock.is-open')
  await link.goto(`${url}/docs#/secrets/storeSecrets`)
  // In one of twelve runs on a busy machine, nothing was open after a minute, for an unknown reason.
  await open.waitFor({ timeout: 20_000 }).catch(async () => {
    t.comment(`${link.url()}: ${await link.locator('body').innerText()}`)
    await link.reload()
    await open.waitFor()
  })
  t.equal(await open.getAttribute('id'), 'operations-secrets-storeSecrets', 'a deep link')
  t.strictSame(window.wrongs, [])
  t.strictSame(elsewhere(window, url), [])
})

/** The values that Swagger UI would send for an operation: its path parameters and its body. */
async function examplesOf (operation: Locator): Promise<Record<string, unknown>> {
  const fields = operation.locator('.parameters tr[data-param-in="path"]')
  const values = await fields.evaluateAll((rows: any[]) => rows.map((row) =>
    [row.dataset.paramName, row.querySelector('input').value]))
  const body = operation.locator('textarea.body-param__text')
  return { ...Object.fromEntries(values), ...(await body.count() > 0 && { body: JSON.parse(await body.inputValue()) }) }
}

const PLACEHOLDERS = {
  organization: FIRST_ORGANIZATION.slug, project: 'orbit', target: 'backend', environment: 'live'
}

/**
 * Two projects: an empty one, and one with targets with and without environments. The first environment is in
 * production, another environment has a document.
 */
async function makeLevels ({ call }: Caller) {
  for (const [path, body] of [
    ['/projects', { name: 'Empty' }], ['/projects', { name: 'Atlas' }],
    ['/atlas/targets', { name: 'Blank' }], ['/atlas/targets', { name: 'Web' }], ['/atlas/targets', { name: 'Worker' }],
    ['/atlas/web/environments', { name: 'Live', status: 'production' }],
    ['/atlas/web/environments', { name: 'Staging' }], ['/atlas/worker/environments', { name: 'Nightly' }],
    ['/secrets/store', { project: 'atlas', target: 'web', environment: 'staging', plaintext: 'A=b' }]
  ] as const) {
    await call('POST', `/cumulus${path}`, body)
  }
}
const noteIn = (page: Page) => page.locator('.info', { hasText: 'keep all placeholders' })

t.test('Swagger UI: after Authorize, the first clicks in an organization of any name succeed', { skip }, async (t) => {
  const { service, url } = await started()
  const { token } = await service.organization({ slug: 'stratus' })
  const { page, wrongs } = await openWindow(t)
  await page.goto(`${url}/docs`)
  const early = await open(page, 'getOrganization')
  t.strictSame(await examplesOf(early), { organization: FIRST_ORGANIZATION.slug }, 'a placeholder')

  await authorize(page, token)
  await noteIn(page).getByText('organization stratus').waitFor()
  t.match(await noteIn(page).innerText(), /Placeholders stay for project, target, environment: there is no project yet/)
  await early.getByRole('button', { name: 'Execute' }).click()
  await early.locator('.live-responses-table .response-col_status', { hasText: '200' }).waitFor()
  for (const id of sample([
    'getUser', 'listMembers', 'listTeams', 'listApiTokens', 'searchNames', 'listAuditEvents', 'listProjects', 'getUsage',
    'listInvitations'
  ], 5)) {
    const { status, text } = await tryOut(page, id)
    t.equal(status, '200', `${id}: ${text.slice(0, 300)}`)
  }
  for (const [id, expected] of [
    ['createProject', '201'], ['createTarget', '201'], ['createEnvironment', '201'], ['storeSecrets', '200'],
    ['readEnvironmentSecrets', '200'], ...LONG ? [['getProject', '200'], ['retrieveSecrets', '200']] as const : []
  ] as const) {
    const { status, text } = await tryOut(page, id)
    t.equal(status, expected, `${id}: ${text.slice(0, 300)}`)
  }
  t.strictSame(wrongs, [])
})

t.test('Swagger UI: examples name what a (narrowed) token can read, and are placeholders after a logout', {
  skip
}, async (t) => {
  const { service, url } = await started()
  const cumulus = await service.organization({ slug: 'cumulus' })
  await makeLevels(cumulus)
  const token = async (restriction: object, abilities: readonly string[]) =>
    (await cumulus.call('POST', '/organizations/cumulus/api-keys', { name: 'Part', abilities, restrictions: [restriction] }))
      .body.token as string
  const { page, wrongs, requested } = await openWindow(t)
  await page.goto(`${url}/docs`)
  for (const group of ['environments', 'secrets', 'versions', 'members']) await page.locator(`#operations-tag-${group}`).click()
  const read = await openShown(page, 'readEnvironmentSecrets')
  const store = await openShown(page, 'storeSecrets')
  const remove = await openShown(page, 'deleteEnvironment')
  const purge = await openShown(page, 'purgeVersions')
  const member = await openShown(page, 'updateMember')
  const shown = async () => {
    const { body, ...path } = await examplesOf(store)
    t.strictSame(Object.keys(path), ['organization'])
    const { organization, ...level } = await examplesOf(read) as Record<string, string>
    t.match(body, level)
    t.equal(path.organization, organization)
    return [organization, ...Object.values(level)].join('/')
  }
  const placeholders = Object.values(PLACEHOLDERS).join('/')
  t.equal(await shown(), placeholders)
  const draft = page.locator('.opblock[id$="-updateMember"] tr[data-param-name="member"] input')
  await draft.fill('4711')
  await member.locator('textarea.body-param__text').fill('{"role":"auditor"}')

  for (const [restriction, abilities, expected] of [
    [{ project: 'atlas' }, ['*'], 'cumulus/atlas/web/staging'],
    [{ project: 'atlas', target: 'worker' }, ['environment:read'], 'cumulus/atlas/worker/nightly'],
    [{ project: 'atlas', target: 'web', environment: 'live' }, ['secret:read'], 'cumulus/atlas/web/live']
  ] as const) {
    requested.splice(0)
    await authorize(page, await token(restriction, abilities))
    await noteIn(page).getByText(`environment ${expected.split('/').at(-1)!}`).waitFor()
    t.equal(await shown(), expected)
    t.ok(requested.length <= 4, requested.join('\n'))
    t.strictSame(await examplesOf(remove), PLACEHOLDERS, 'what deletes keeps its placeholders')
    t.match((await examplesOf(purge)).body, { project: 'orbit', target: 'backend', environment: 'live' })
    t.match(await examplesOf(member), { member: '4711', body: { role: 'auditor' } }, 'what was typed stays')
    const dialog = await openAuthorizations(page)
    await dialog.getByRole('button', { name: 'Remove authorization' }).click()
    await dialog.getByRole('button', { name: 'Close' }).first().click()
    await noteIn(page).waitFor({ state: 'detached' })
    t.equal(await shown(), placeholders, 'after a logout')
  }
  t.strictSame(wrongs, [])
})

t.test('Swagger UI: where the examples stay placeholders, the page says why', { skip }, async (t) => {
  const { service, url } = await started()
  const { organization } = await service.organization({ slug: 'altus' })
  const limited = await service.token(organization, ['secret:read'])
  const { page } = await openWindow(t)
  for (const [token, why, at] of [
    [limited.token, /Placeholders stay for project, target, environment: GET \/api\/v1\/altus\/projects responds with 403/, 'altus'],
    ['dotenv_none', /Placeholders stay for organization, .*: GET \/api\/v1\/user responds with 401/, FIRST_ORGANIZATION.slug],
    ['not\u2028a header', /Placeholders stay for organization, .*: GET \/api\/v1\/user has no response/, FIRST_ORGANIZATION.slug]
  ] as const) {
    // A loaded page knows no token.
    await page.goto(`${url}/docs`)
    await authorize(page, token)
    await noteIn(page).waitFor()
    t.match((await noteIn(page).innerText()).replaceAll('\n', ' '), why)
    t.match(await examplesOf(await open(page, 'getProject')), { organization: at, project: 'orbit' })
  }
})

t.test('the API documentation filters by words, folds all groups but the first, and fills in no filter', { skip }, async (t) => {
  const { url } = await started()
  const { page, wrongs } = await openWindow(t)
  await page.goto(`${url}/docs`)
  await page.locator('.opblock').first().waitFor()
  t.equal(await page.locator('.opblock:not([id^="operations-organizations-"])').count(), 0)
  t.match((await page.locator('.opblock-tag').allInnerTexts()).slice(-2), [/^billing/, /^deprecated/])

  await page.locator('#operations-tag-audit').click()
  await page.locator('#operations-audit-listAuditEvents .opblock-summary-control').click()
  await page.locator('#operations-audit-listAuditEvents').getByRole('button', { name: 'Try it out' }).click()
  const filters = page.locator('#operations-audit-listAuditEvents .parameters tr[data-param-in="query"]')
  for (const name of ['actor', 'action', 'resource', 'from', 'to', 'before']) {
    const field = filters.and(page.locator(`[data-param-name="${name}"]`)).locator('input, select')
    t.equal(await field.inputValue(), '', name)
  }

  await page.getByRole('searchbox', { name: 'Filter operations' }).fill('Coupon redeem')
  await page.locator('.opblock[id="operations-billing-redeemCoupon"]').waitFor()
  t.strictSame(await page.locator('.opblock').evaluateAll((all) =>
    all.map(({ id }: { id: string }) => id).filter((id) => !/coupon/i.test(id))), [])
  await page.getByRole('searchbox', { name: 'Filter operations' }).fill('')
  await page.locator('.opblock[id$="-getOrganization"]').waitFor()
  t.strictSame(wrongs, [])
})

// The consent flow, as applications use it.

const client = (service: TestApp, id: string, name: string, redirect: string) =>
  addClient(service.database, { id, name, redirect_uris: [redirect] })

t.test('CR-45: after consent the browser goes where the application is', { skip }, async (t) => {
  const { service, url } = await started()
  const nimbus = await service.organization()
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const requests: IncomingMessage[] = []
  const listener = createServer((request, response) => {
    requests.push(request)
    response.end('You can close this page.')
  }).listen(0, '127.0.0.1')
  await new Promise((resolve) => listener.once('listening', resolve))
  t.teardown(() => listener.close())
  await client(service, 'web', 'Web', 'https://app.example/callback')
  await client(service, 'phone', 'Phone', 'com.example.phone:/callback')

  for (const [client_id, redirect_uri] of [
    ['dotenv-cli', `http://127.0.0.1:${(listener.address() as AddressInfo).port}/callback`],
    ['web', 'https://app.example/callback'],
    ['phone', 'com.example.phone:/callback']
  ] as const) {
    const decisions = { 'dotenv-cli': ['Allow', 'Deny'], web: ['Allow'], phone: ['Deny'] }[client_id]
    for (const decision of LONG ? ['Allow', 'Deny'] : decisions) {
      const window = await openWindow(t)
      const { page, context } = window
      const { challenge, verifier } = pkce()
      await page.goto(url + authorizationUrl(challenge, { client_id, redirect_uri }))
      await signIn(page, rosa)
      const answered = page.waitForResponse((response) => response.url().endsWith('/oauth/authorize/decision'))
      const left = context.waitForEvent('request', (request) => request.url().startsWith(`${redirect_uri}?`))
      await page.getByRole('button', { name: decision, exact: true }).click()
      const answer = await answered
      t.equal(answer.status(), 303)
      const back = new URL(await answer.headerValue('location') ?? '')
      t.ok(back.href.startsWith(`${redirect_uri}?`))
      // No server listens on the other two addresses, so the browser only tries to connect.
      await left
      if (client_id === 'dotenv-cli') await page.getByText('You can close this page.').waitFor()
      t.strictSame(window.wrongs, [], `${redirect_uri}: ${decision}`)
      t.equal(back.searchParams.get('error'), decision === 'Allow' ? null : 'access_denied')
      if (decision === 'Allow') {
        const code = back.searchParams.get('code')
        t.equal((await post(
          url, '/api/oauth/token',
          { grant_type: 'authorization_code', code, code_verifier: verifier, client_id, redirect_uri }
        )).status, 200)
      }
    }
  }
  const called = requests.filter(({ url }) => url?.startsWith('/callback?'))
  t.equal(called.length, 2)
  for (const { headers } of called) {
    t.strictSame(
      [headers.referer, headers.origin ?? 'null'], [undefined, 'null'], 'the application is not told which page it was'
    )
  }
})

t.test('CR-45: the policy of the consent page stops scripts, and forms that would lead elsewhere', { skip }, async (t) => {
  const { service, url } = await started()
  const rosa = await makePerson(service)
  const name = '<script>window.ran = 1</script><img src=x onerror="window.ran = 1">'
  await client(service, 'evil', name, 'com.example.evil:/callback')
  const address = url +
    authorizationUrl(pkce().challenge, { client_id: 'evil', redirect_uri: 'com.example.evil:/callback' })

  const window = await openWindow(t)
  const { page, context } = window
  await page.goto(address)
  t.equal(await page.locator('strong').innerText(), name, 'the name is text')
  await signIn(page, rosa)
  t.equal(await page.getByRole('heading', { level: 1 }).innerText(), `Allow ${name} to act for you?`)
  t.equal(await page.evaluate('window.ran'), undefined)
  t.equal(await page.locator('script, img').count(), 0)
  t.strictSame(window.wrongs, [])

  // The page stays safe even if an attacker could insert markup.
  await context.route('**/oauth/authorize?**', async (route) => {
    const response = await route.fetch()
    await route.fulfill({
      response, body: (await response.text()).replace('</main>', `${name}<style>h1 { color: red }</style></main>`)
    })
  })
  await page.goto(address)
  t.equal(await page.locator('script').count(), 1, 'it is there')
  t.equal(await page.evaluate('window.ran'), undefined, 'and does not run')
  for (const directive of ['script-src-elem', 'script-src-attr', 'style-src-elem']) {
    t.ok(window.wrongs.some((wrong) => wrong.startsWith(directive)), directive)
  }

  window.wrongs.length = 0
  await page.evaluate(
    "document.querySelector('form').action = 'https://evil.example/'; document.querySelector('button.main').click()"
  )
  await until(() => /form-action/.test(window.wrongs.join('\n')))
  t.strictSame(elsewhere(window, url), [])
})

// Accessibility and layout of the pages.

const RATIOS = `(() => {
  const parts = (text) => text.match(/[\\d.]+/g).map(Number)
  const linear = (part) => part / 255 <= 0.03928 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4
  const light = (text) => { const [r, g, b] = parts(text).map(linear); return 0.2126 * r + 0.7152 * g + 0.0722 * b }
  const ratio = (one, other) => { const [a, b] = [light(one), light(other)].sort((x, y) => y - x); return (a + 0.05) / (b + 0.05) }
  const ground = (element) => getComputedStyle(element).backgroundColor
  const behind = (element) => element === null ? 'rgb(255, 255, 255)' : parts(ground(element))[3] === 0 ? behind(element.parentElement) : ground(element)
  const seen = [...document.querySelectorAll('main, main *')].filter((element) => element.checkVisibility())
  const texts = seen.filter((element) => element.matches('input') || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== ''))
  const edges = seen.filter((element) => element.matches('button, input:not([type=checkbox])'))
  return {
    text: Math.min(...texts.map((element) => ratio(getComputedStyle(element).color, behind(element)))),
    edge: Math.min(...edges.map((element) => ratio(getComputedStyle(element).borderTopColor, behind(element.parentElement))), 21)
  }
})()`
const LOW = `[...document.querySelectorAll('button, a, label:has(input), input:not([type=checkbox], [type=hidden])')]
  .filter((element) => element.checkVisibility() && element.getBoundingClientRect().height < 44).map((element) => element.outerHTML)`
const HEADINGS = "[...document.querySelectorAll('h1, h2, h3, h4, h5, h6')].map((heading) => Number(heading.tagName[1]))"

/** Asserts that every person can read, see and use the elements of a page. */
async function isFit (t: Test, page: Page, where: string, withAxe = true) {
  await page.getByRole('heading', { level: 1 }).waitFor()
  const { text, edge } = await page.evaluate(RATIOS) as { text: number, edge: number }
  t.ok(text >= 4.5, `${where}: text has a contrast of ${text.toFixed(1)}`)
  t.ok(edge >= 3, `${where}: edges have a contrast of ${edge.toFixed(1)}`)
  const width = page.viewportSize()!.width
  t.equal(await page.evaluate('document.documentElement.scrollWidth'), width, `${where}: nothing is wider`)
  t.strictSame(await page.evaluate(LOW), [], `${where}: whatever is pressed is high enough`)
  const headings = await page.evaluate(HEADINGS) as number[]
  t.ok(headings[0] === 1 && headings.every((level, i) =>
    level <= (headings[i - 1] ?? 0) + 1 && (level > 1 || i === 0)), `${where}: headings ${headings.join(' ')}`)
  if (withAxe) t.strictSame(await accessibilityProblems(page), [], `${where}: axe`)
}

t.test('OA-16: every page can be read, seen and pressed: narrow and wide, light and dark', { skip }, async (t) => {
  // This test sends no mail.
  const service = await startIsolatedApp(t, { SMTP_URL: 'smtp://127.0.0.1:9' })
  const url = await service.app.listen({ host: '127.0.0.1', port: 0 })
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'billing_manager' })
  await client(service, 'long', `Deployments ${'x'.repeat(80)}`, 'https://app.example/callback')
  const link = 'a'.repeat(43)
  await createPasswordLink(service.database.db, hashToken(link), rosa.id)
  await createPasswordReset(service.database.db, rosa.email, link, rosa.id)
  const long = authorizationUrl(pkce().challenge, { client_id: 'long', redirect_uri: 'https://app.example/callback' })

  for (const [i, colorScheme] of (['light', 'dark'] as const).entries()) {
    for (const width of byTurns([320, 1280], i, 2)) {
      const window = await openWindow(t, { colorScheme, viewport: { width, height: 700 } })
      const { page } = window
      // In npm test, axe looks at each page once: at every second one in each window.
      let pages = i
      const look = (what: string) =>
        isFit(t, page, `${what}, ${colorScheme}, ${width} pixels`, LONG || pages++ % 2 === 0)
      await page.goto(url + long)
      await look('sign-in')
      await signIn(page, { ...rosa, password: 'not this one' })
      await page.getByRole('alert').waitFor()
      await look('sign-in that failed')
      await signIn(page, rosa)
      await page.getByRole('heading', { name: 'act for you' }).waitFor()
      await look('consent')
      for (const [what, path] of [
        ['account', '/account'], ['password', '/account/password'], [
          'link', `/account/set-password/${link}`
        ], ['no link', '/account/set-password/none'],
        ['forgotten password', '/account/forgot-password'], ['reset', `/account/reset-password/${link}`],
        ['problem', '/oauth/authorize']
      ] as const) {
        await page.goto(`${url}${path}`)
        await look(what)
      }
      t.strictSame(window.wrongs, [])
    }
  }
})

t.test('a second factor is set up, asked for, and turned off by recovery code, narrow and wide', {
  skip
}, async (t) => {
  const { service, url } = await listen(t)
  const { organization } = await service.organization()
  for (const width of sample([320, 1280], 2)) {
    const rosa = await makePerson(service, { [organization]: 'member' })
    const window = await openWindow(t, { viewport: { width, height: 700 } })
    const { page } = window
    const look = (what: string) => isFit(t, page, `${what}, ${width} pixels`)
    await page.goto(`${url}/account`)
    await signIn(page, rosa)
    await page.getByRole('link', { name: 'Set up a second factor' }).click()
    await look('setting up')
    await page.getByLabel('Current password').fill(rosa.password)
    await page.getByRole('button', { name: 'Continue' }).click()
    await look('the key')
    t.ok(await page.getByRole('img', { name: 'QR code for an authenticator app' }).isVisible())
    const key = await page.locator('dt:text("Key") + dd').innerText()
    const secret = Buffer.from(base32.decode(key.replaceAll(' ', ''), { strict: false }))
    await page.getByLabel('Code of the authenticator app').fill(await codeAt(secret, stepAt(Date.now())))
    await page.getByRole('button', { name: 'Turn on' }).click()
    await look('recovery codes')
    const codes = await page.locator('ol.codes code').allInnerTexts()
    t.equal(codes.length, 10)
    const broken = await page.evaluate(`[...document.querySelectorAll('ol.codes code')].filter((code) =>
      code.offsetHeight > 1.5 * parseFloat(getComputedStyle(code).lineHeight)).length`)
    t.equal(broken, 0, 'no code breaks')
    await page.locator('ol.codes code').first().click()
    const selected = await page.evaluate('String(getSelection())') as string
    for (const code of codes) t.match(selected, code, 'a click selects all codes')
    await page.getByRole('link', { name: 'Continue to your account' }).click()
    await look('the account')

    const { page: other } = await openWindow(t, { viewport: { width, height: 700 } })
    await other.goto(`${url}/account`)
    await signIn(other, rosa)
    await isFit(t, other, `the code, ${width} pixels`)
    await other.getByLabel('Code of your authenticator app').fill(codes[0]!)
    await other.locator('button.main').click()
    await other.getByRole('link', { name: 'Change the second factor' }).click()
    await isFit(t, other, `changing it, ${width} pixels`)
    t.match(await other.locator('main').innerText(), '9 of your recovery codes are left')
    await other.getByLabel('Current password').fill(rosa.password)
    await other.getByLabel('Code of your authenticator app').fill(codes[1]!)
    await other.getByRole('button', { name: 'Turn off' }).click()
    await other.goto(`${url}/account`)
    t.ok(await other.getByRole('link', { name: 'Set up a second factor' }).isVisible())
    t.strictSame(window.wrongs, [])
    t.strictSame(elsewhere(window, url), [])
  }
})

t.test('OA-16: the pages say what their fields are, and what is wrong with them', { skip }, async (t) => {
  const { service, url } = await started()
  const [nimbus, cirrus] = [await service.organization(), await service.organization()]
  await service.sql(`UPDATE organization_counters SET name = 'Cirrus' WHERE organization_id = '${cirrus.organization}'`)
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner', [cirrus.organization]: 'billing_manager' })
  const { page } = await openWindow(t)
  const is = async (snapshot: string) => {
    const found = await page.locator('main').ariaSnapshot()
    for (const line of snapshot.trim().split('\n')) t.ok(found.includes(line.trim()), `${line.trim()} in\n${found}`)
  }
  await page.goto(url + authorizationUrl(pkce().challenge))
  await is(`
    - heading "Sign in" [level=1]
    - textbox "E-mail address"
    - textbox "Password"
    - button "Sign in"`)
  await signIn(page, { ...rosa, password: 'not this one' })
  await is(`
    - alert: Wrong e-mail address or password.
    - textbox "E-mail address": ${rosa.email}
    - textbox "Password"`)
  t.equal(await page.evaluate('document.activeElement.id'), 'password', 'the next thing to do')
  t.equal(
    await page.getByRole('textbox', { description: /Wrong e-mail address or password/ }).count(), 2, 'the fields tell it too'
  )
  await signIn(page, rosa)
  await page.getByRole('heading', { name: 'Allow Command line to act for you?', level: 1 }).waitFor()
  await is(`
    - heading "It requests permission to" [level=2]
    - definition: Cirrus (billing manager)
    - definition: Nimbus (owner)
    - group "Secrets":
    - heading "Secrets" [level=3]
    - checkbox "Read encrypted secrets secret:read" [checked]
    - group "Encryption keys":
    - group "API tokens":
    - button "Allow"
    - button "Deny"`)
  t.equal(await page.getByRole('group').count(), 10)
  for (const [scope, words] of Object.entries(SCOPES)) {
    t.equal(
      await page.getByRole('checkbox', { name: `${words} ${scope}`, exact: true, checked: true }).count(), 1, scope
    )
  }
  await page.goto(`${url}/account`)
  await is(`
    - heading "Your account" [level=1]
    - button "Sign out"
    - button "Sign out everywhere"
    - link "Change the password"`)
  const text = await page.locator('main').innerText()
  t.match(text, 'All dates and times on this page are in UTC.')
  t.match(text, /since \d{4}-\d\d-\d\d \d\d:\d\d UTC, last used \d{4}-\d\d-\d\d \d\d:\d\d UTC \(this browser\)/)
  t.match(text, /^\d{4}-\d\d-\d\d \d\d:\d\d UTC\n+signed in, from 127\.0\.0\.1, Chrome on Linux$/m)
  await page.getByText('Who else sees these events?').click()
  await page.getByText('Other organizations do not see these events.').waitFor()
  await page.getByRole('link', { name: 'Change the password' }).click()
  await is(`
    - heading "Change the password" [level=1]
    - textbox "Current password"
    - textbox "New password"
    - button "Change"`)
  t.equal(await page.getByRole('textbox', { name: 'New password', description: /^At least 8 characters/ }).count(), 1)
  await page.getByLabel('Current password').fill('not this one')
  await page.getByLabel('New password').fill('a longer one than before')
  await page.keyboard.press('Enter')
  await is('- alert: The current password is wrong.')
  const link = 'b'.repeat(43)
  await createPasswordLink(service.database.db, hashToken(link), rosa.id)
  await page.goto(`${url}/account/set-password/${link}`)
  await is(`
    - textbox "E-mail address": ${rosa.email}
    - textbox "New password"
    - button "Set the password"`)
  t.notOk(await page.getByLabel('E-mail address').isEditable())
  await page.goto(`${url}/oauth/authorize?client_id=none`)
  await is('- alert')
})

t.test('OA-15: by keyboard alone: every control in its order, in sight, and only the button that is meant', { skip }, async (t) => {
  const { service, url } = await started()
  const nimbus = await service.organization()
  const rosa = await makePerson(service, { [nimbus.organization]: 'owner' })
  const { page, context } = await openWindow(t)
  await client(service, 'keys', 'Web', 'https://app.example/callback')
  const focused = () => page.evaluate(`(() => {
    const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement)
    return [document.activeElement.value, outlineStyle !== 'none' && parseFloat(outlineWidth) >= 2]
  })()`)
  const start = url + authorizationUrl(pkce().challenge, {
    client_id: 'keys', redirect_uri: 'https://app.example/callback', scope: 'secret:read project:read'
  })

  await page.goto(start)
  await page.locator('#email:focus').waitFor()
  await page.keyboard.type(rosa.email)
  await page.keyboard.press('Tab')
  await page.keyboard.type(rosa.password)
  await page.keyboard.press('Enter')
  await page.getByRole('heading', { name: 'Allow Web to act for you?' }).waitFor()
  for (const value of ['secret:read', 'project:read', 'allow', 'deny']) {
    await page.keyboard.press('Tab')
    t.strictSame(await focused(), [value, true])
  }
  await page.getByRole('checkbox').first().focus()
  await page.keyboard.press('Space')
  await page.keyboard.press('Enter')
  await page.waitForTimeout(300)
  t.equal(page.url(), start, 'Enter in a box decides nothing')
  t.notOk(await page.getByRole('checkbox').first().isChecked())
  await page.keyboard.press('Tab')
  await page.keyboard.press('Tab')
  t.strictSame(await focused(), ['allow', true])
  const allowed = context.waitForEvent('request', (request) =>
    request.url().startsWith('https://app.example/callback?code='))
  await page.keyboard.press('Enter')
  await allowed
  const [grant] = await service.sql(
    `SELECT array_to_string(scopes, ' ') AS scopes FROM oauth_grants WHERE user_id = ${rosa.id}`
  )
  t.equal(grant?.scopes, 'project:read', 'what was left ticked')

  const again = await context.newPage()
  await again.goto(start)
  await again.getByRole('button', { name: 'Deny' }).focus()
  const refused = context.waitForEvent('request', (request) =>
    request.url().startsWith('https://app.example/callback?error=access_denied'))
  await again.keyboard.press('Enter')
  await refused
})

t.test('a downloaded invoice is styled, loads nothing, and is printed whole on several pages', { skip }, async (t) => {
  const service = await startIsolatedApp(t)
  const caller = await service.organization()
  const address = Array.from({ length: 10 }, (_, n) => (n % 2 === 0 ? '漢' : 'ש').repeat(99)).join('\n')
  const billing_details = { name: `<img src=x> ${'x'.repeat(243)}`, address, tax_id: '1'.repeat(64) }
  await bill(caller, 'POST', 'payment-methods', { kind: 'manual', label: 'Wire', reference: 'y'.repeat(255) })
  t.equal((await subscribe(caller, { plan: 'pro', billing_details })).status, 201)
  const { id } = (await invoicesOf(caller))[0]!
  const { text } = await service.inject({
    method: 'GET',
    url: `/api/v1${pathOf(caller, `billing/invoices/${id}/download`)}`,
    headers: { authorization: `Bearer ${caller.token}` }
  })
  const file = join(scratchDirectory(t), 'invoice.html')
  writeFileSync(file, text)
  const location = pathToFileURL(file).href
  for (const width of [320, 1280]) {
    const { page, wrongs, requested } = await openWindow(t, { viewport: { width, height: 700 } })
    await page.goto(location)
    const style = async (selector: string, property: string) =>
      page.evaluate(`getComputedStyle(document.querySelector('${selector}')).${property}`)
    t.equal(await style('h1', 'fontSize'), '32px', 'its style sheet is applied')
    t.equal(await page.getByText(billing_details.name).count(), 1)
    t.equal(await style('section + section p:nth-of-type(2)', 'direction'), 'ltr')
    t.equal(await style('section + section p:nth-of-type(3)', 'direction'), 'rtl')
    t.ok(await page.evaluate('document.documentElement.scrollWidth <= innerWidth'), `nothing is cut at ${width} pixels`)
    const pages = (await page.pdf({ preferCSSPageSize: true })).toString('latin1').match(/\/Type \/Page\b(?!s)/g)
    t.ok(pages !== null && pages.length > 1, `${pages?.length} pages`)
    t.strictSame([wrongs, requested], [[], [location]])
  }
})
