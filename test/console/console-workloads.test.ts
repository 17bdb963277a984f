// runs: one database; 60 s
import { execFileSync } from 'node:child_process'
import type { Browser } from 'playwright-core'
import t from 'tap'
import { parse } from 'yaml'
import { FAILED_CHECKS, PRESETS, WORKLOAD_SCOPES } from '../../schemas/workloads.ts'
import { PRESET_RULES } from '../../src/rules/workload-presets.ts'
import { launch, openWindow, signIn, skip } from '../helpers/browser.ts'
import { button, look, said, visitConsole } from '../helpers/console-window.ts'
import { GITHUB, walkWorkloads } from '../helpers/console-workloads.ts'
import { load } from '../helpers/console.ts'
import { makePerson } from '../helpers/people.ts'
import { until } from '../helpers/until.ts'

// The page of trust rules of workloads.

let browser: Browser
t.before(async () => { if (!skip) browser = await launch() })
t.teardown(async () => browser?.close())

t.test('presets, checks and scopes of the page are those of the service', async (t) => {
  const { PLATFORMS, CHECKS, isWorkloadScope } = await load('workloads.ts')
  const { ALL_SCOPES } = await load('scopes.ts')
  t.strictSame(Object.keys(PLATFORMS), PRESETS)
  for (const preset of PRESETS) t.strictSame(PLATFORMS[preset].ids, PRESET_RULES[preset].ids, preset)
  t.strictSame(Object.keys(CHECKS), FAILED_CHECKS)
  t.strictSame([...ALL_SCOPES].filter(isWorkloadScope).sort(), [...WORKLOAD_SCOPES].sort())
})

t.test('claims become rows and again the same claims', async (t) => {
  const { rowsOf, claimsOf, rowsOfPlatform } = await load('workloads.ts')
  for (const claims of [
    { repository_id: '74' }, { ref: ['refs/heads/main', 'refs/tags/*'] }, { protected: true, count: 7, text: 'true', digits: '7' },
    { mixed: ['1', 1, true, 'a, b'], 'oidc.circleci.com/project-id': 'p' }, { below: -1, space: ' a ' }
  ]) {
    t.strictSame(claimsOf(rowsOf(claims)), claims)
    t.strictSame(claimsOf(rowsOfPlatform('gitlab', rowsOf(claims))), claims, 'empty rows do not count')
  }
  t.strictSame(rowsOfPlatform('google', []), [{ name: 'sub', kind: 'text', value: '', isFixed: true }])
  t.strictSame(rowsOfPlatform('', []), [{ name: '', kind: 'text', value: '' }])
  for (const [kind, value, message] of [['number', '1.5', /no whole number/], ['number', '', null], ['boolean', 'yes', /neither true nor false/]] as const) {
    const convert = () => claimsOf([{ name: 'a', kind, value }])
    if (message === null) t.strictSame(convert(), {})
    else t.throws(convert, message)
  }
  t.throws(() => claimsOf([{ name: '', kind: 'text', value: 'x' }]), /needs the name/)
})

t.test('the variables of each preset name the rule, and what gives the token', async (t) => {
  const { variablesOf } = await load('workloads.ts')
  const rule = { public_id: 'wl_A_7', audience: 'https://other.example.com' }
  for (const preset of [...PRESETS, null]) {
    const third = { 'github-actions': 'STRONGROOM_AUDIENCE=https://other.example.com', gitlab: 'STRONGROOM_ID_TOKEN: { aud: "https://other.example.com" }' }[preset as string]
    const text = variablesOf({ ...rule, preset }, 'https://s.example.com')
    t.match(text, 'STRONGROOM_URL=https://s.example.com\nSTRONGROOM_WORKLOAD=wl_A_7\n')
    t.ok(text.endsWith(third ?? 'STRONGROOM_ID_TOKEN_FILE=/var/run/strongroom/token'), preset ?? 'no preset')
  }
  const quoted = ['a b', '$(id)', "it's; id", '`id`', '} #"\\']
  for (const audience of [...quoted, 'a,b', 'a,b:', '-', '@a', '%a', '1e3', 'true', 'https://a,b']) {
    const last = (preset: string) => variablesOf({ ...rule, audience, preset }, 'x').split('\n').at(-1).replace(/^[^=:]*[=:]/, '')
    t.equal(execFileSync('sh', ['-c', `printf %s ${last('github-actions')}`]).toString(), audience, 'a word of a shell')
    t.strictSame(parse(last('gitlab')), { aud: audience }, 'a value of YAML')
  }
})

// The first hour of test/console/console-walk.test.ts does the same at 1,280 pixels.
t.test('at 360 pixels an owner makes, tests, changes, disables and deletes a rule', { skip }, async (t) => {
  const visited = await visitConsole(t, browser, 360)
  const { page, url, nimbus, rosa, wrongs, operations } = visited
  await nimbus.call('POST', '/nimbus/projects', { name: 'Shop' })
  await nimbus.call('POST', '/nimbus/shop/targets', { name: 'Backend' })
  await nimbus.call('POST', '/nimbus/shop/backend/environments', { name: 'Live' })
  await page.goto(`${url}/console/nimbus`)
  await signIn(page, rosa)
  await page.getByRole('heading', { level: 1 }).waitFor()
  await walkWorkloads(t, visited)
  for (const operation of ['listWorkloads', 'createWorkload', 'getWorkload', 'updateWorkload', 'deleteWorkload', 'testWorkload']) {
    t.ok(operations.has(operation), operation)
  }
  t.strictSame(wrongs, [])
})

const RULE = { name: 'Nightly', issuer: GITHUB, claims: { repository_id: '74' }, scopes: ['secret:read'] }

t.test('people who may only read rules see no change of them, and others only changes within their role', { skip }, async (t) => {
  const { service, url, nimbus } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/organizations/nimbus/workloads', RULE)
  await nimbus.call('POST', '/organizations/nimbus/workloads', { ...RULE, name: 'Purge', scopes: ['secret:purge', 'organization:read'] })
  for (const [role, offered] of [
    ['auditor', ['Use and test Nightly…', 'Use and test Purge…']],
    ['administrator', null]
  ] as const) {
    const person = await makePerson(service, { [nimbus.organization]: role })
    const { page, wrongs } = await openWindow(t, browser, { viewport: { width: 1280, height: 800 } })
    await page.goto(`${url}/console/nimbus/-/workloads`)
    await signIn(page, person)
    await page.getByRole('region', { name: 'Rules', exact: true }).waitFor()
    const texts = (await page.locator('main button').allInnerTexts())
      .map((text) => text.replace(/\s+/g, ' ').replace(' …', '…')).filter((text) => text !== '' && text !== 'Copy commands')
    if (offered !== null) t.strictSame(texts.sort(), offered)
    else for (const text of ['Create rule…', 'Change Nightly…', 'Disable Nightly…', 'Delete rule Nightly…']) t.ok(texts.includes(text), text)
    await look(t, page, `rules for ${role}`)
    t.strictSame(wrongs, [])
  }
})

t.test('another change of a rule in between is not overwritten; errors are beside their fields', { skip }, async (t) => {
  const { page, url, nimbus, rosa } = await visitConsole(t, browser, 1280)
  const { id } = (await nimbus.call('POST', '/organizations/nimbus/workloads', RULE)).body.data
  const path = `/organizations/nimbus/workloads/${id}`
  await page.goto(`${url}/console/nimbus/-/workloads`)
  await signIn(page, rosa)
  await button(page, /^Change Nightly/).click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Seconds for which').fill('5')
  await button(dialog, 'Save rule').click()
  await dialog.locator('.field', { has: page.getByLabel('Seconds for which') }).getByRole('alert').waitFor()
  await dialog.getByLabel('Seconds for which').fill('600')
  await dialog.getByLabel('Public keys').fill('{')
  await button(dialog, 'Save rule').click()
  await dialog.getByText('The public keys are no JSON text.').waitFor()
  await dialog.getByLabel('Public keys').fill('{"keys":[{"kty":"oct","k":"AAAA"}]}')
  await button(dialog, 'Save rule').click()
  await dialog.locator('.field', { has: page.getByLabel('Public keys') }).getByRole('alert').getByText('private or symmetric').waitFor()
  await dialog.getByLabel('Public keys').fill('')
  await dialog.getByLabel('Value of claim 1').fill('7*')
  await button(dialog, 'Save rule').click()
  await dialog.getByRole('alert').getByText('repository_id: Expected an exact value').waitFor()
  await look(t, page, 'error of a claim')
  await dialog.getByLabel('Value of claim 1').fill('75')
  await nimbus.call('PATCH', path, { enabled: false })
  await button(dialog, 'Save rule').click()
  await dialog.getByRole('alert').waitFor()
  t.match((await nimbus.call('GET', path)).body.data.attributes, { claims: { repository_id: '74' }, lifetime: 900, enabled: false })
})

t.test('the list of rules has a search, a kubernetes rule has its keys, and the audit page names rules', { skip }, async (t) => {
  const { page, url, nimbus, rosa } = await visitConsole(t, browser, 1280)
  await nimbus.call('POST', '/organizations/nimbus/workloads', RULE)
  await page.goto(`${url}/console/nimbus/-/workloads`)
  await signIn(page, rosa)
  await button(page, 'Create rule…').click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Name of the rule').fill('Cluster')
  await dialog.getByLabel('Platform', { exact: true }).selectOption('kubernetes')
  await dialog.getByLabel('Issuer', { exact: true }).fill('https://kubernetes.default.svc')
  await dialog.getByLabel('sub', { exact: true }).fill('system:serviceaccount:shop:app')
  await dialog.getByLabel('kubernetes.io/namespace').fill('shop')
  await button(dialog, 'Create rule').click()
  await dialog.getByText('Choose a project first.').waitFor()
  await dialog.getByLabel('Place').selectOption('all')
  await button(dialog, 'Create rule').click()
  await said(page, 'Created the rule Cluster.')
  const rows = page.getByRole('region', { name: 'Rules', exact: true }).locator('tbody tr')
  await until(async () => await rows.count() === 2)
  await page.getByLabel('Search by name').fill('CLUS')
  await until(async () => await rows.count() === 1)
  t.match(await rows.innerText(), /Kubernetes of https:\/\/kubernetes\.default\.svc[^]*sub system:serviceaccount:shop:app[^]*the whole organization/)
  const { body } = await nimbus.call('GET', '/organizations/nimbus/workloads?search=cluster')
  t.match(body.data[0].attributes, { single_use: false, max_assertion_age: 86_400, claims: { sub: 'system:serviceaccount:shop:app', 'kubernetes.io/namespace': 'shop' } })

  await page.goto(`${url}/console/nimbus/-/audit`)
  await button(page, 'Filter…').click()
  const who = page.getByLabel('Who', { exact: true })
  await who.waitFor()
  t.ok((await who.locator('option').allInnerTexts()).includes('Cluster (workload)'))
  await page.getByRole('row', { name: /workload\.create.*Cluster/ }).waitFor()
})
