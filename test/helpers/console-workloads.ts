import type { Test } from 'tap'
import { button, confirm, follow, look, said, type Visit } from './console-window.ts'
import { makeKey, signFor } from './issuer.ts'

// The page of trust rules in a window of Chromium.

export const GITHUB = 'https://token.actions.githubusercontent.com'

/**
 * Does all that the page of trust rules offers: makes a rule for a level of the project `shop`, tests and exchanges
 * tokens, changes, disables and deletes the rule.
 */
export async function walkWorkloads (t: Test, { page, url, nimbus, service }: Visit) {
  const rules = () => nimbus.call('GET', '/organizations/nimbus/workloads')
  const key = await makeKey()
  await follow(page, 'Workloads')
  await page.getByText('There is no rule.').waitFor()
  await look(t, page, 'no rules')
  await button(page, 'Create rule…').click()
  const dialog = page.getByRole('dialog')
  await dialog.getByLabel('Name of the rule').fill('Deployment')
  t.equal(await dialog.getByLabel('Platform', { exact: true }).inputValue(), 'github-actions')
  await dialog.getByText(`The “iss” of its tokens, an https URL: ${GITHUB} for github.com.`).waitFor()
  await dialog.getByLabel('Issuer', { exact: true }).fill(GITHUB)
  await dialog.getByLabel('Project', { exact: true }).selectOption('shop')
  await dialog.getByLabel('Part of the project').selectOption('backend/live')
  await dialog.getByLabel('Public keys').fill(JSON.stringify({ keys: [key.jwk] }))
  await dialog.getByLabel('ref', { exact: true }).fill('refs/heads/main')
  await look(t, page, 'new rule')
  await button(dialog, 'Create rule').click()
  await dialog.getByRole('alert').getByText('one of repository_id, repository_owner_id').waitFor()
  await dialog.getByLabel('repository_id', { exact: true }).fill('74')
  await button(dialog, 'Add a claim').click()
  await dialog.getByLabel('Name of claim 6').fill('ref')
  await dialog.getByLabel('Value of claim 6').fill('refs/tags/*')
  await button(dialog, 'Create rule').click()
  await said(page, 'Created the rule Deployment.')
  const [{ id, attributes }] = (await rules()).body.data
  t.match(attributes, {
    preset: 'github-actions',
    issuer: GITHUB,
    claims: { repository_id: '74', ref: ['refs/heads/main', 'refs/tags/*'] },
    scopes: ['secret:read', 'secret:decrypt'],
    restrictions: [{ project: 'shop', target: 'backend', environment: 'live', inherited: true }],
    lifetime: 900,
    single_use: true,
    max_assertion_age: 3600
  })
  const { public_id, audience } = attributes as { public_id: string, audience: string }
  const table = page.getByRole('region', { name: 'Rules', exact: true })
  t.match(await table.locator('tbody tr').innerText(), /GitHub Actions of [^]*repository_id 74[^]*secret \(read, decrypt\)\s+shop[^/]* \/ backend \/ live, with values from above\s+Enabled\s+never/i)
  await look(t, page, 'rules')

  // The variables, tests and logins.
  const sign = (claims: object) => signFor(GITHUB, key, { aud: audience, sub: 'repo:o/r', run_id: '7', jti: `${Math.random()}`, ...claims })
  const exchange = async (assertion: string) => (await service.inject({
    method: 'POST',
    url: '/api/oauth/token',
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    payload: new URLSearchParams({ grant_type: 'urn:ietf:params:oauth:grant-type:jwt-bearer', client_id: public_id, assertion }).toString()
  })).status
  t.equal(await exchange(await sign({ repository_id: '74', ref: 'refs/tags/v1' })), 200)
  t.equal(await exchange(await sign({ repository_id: '75', ref: 'refs/heads/main' })), 400)
  await button(page, /^Use and test Deployment/).click()
  await dialog.getByRole('region', { name: 'Logins of Deployment' }).waitFor()
  t.match(await dialog.locator('pre').innerText(), `STRONGROOM_URL=${url}\nSTRONGROOM_WORKLOAD=${public_id}\nSTRONGROOM_AUDIENCE=${audience}`)
  await page.evaluate('navigator.clipboard.writeText = async (text) => { window.copied = text }')
  await button(dialog, 'Copy variables').click()
  t.match(await page.evaluate('copied'), `STRONGROOM_WORKLOAD=${public_id}`)
  await button(dialog, 'Copy public id').click()
  t.equal(await page.evaluate('copied'), public_id)
  const test = async (token: string, answer: string) => {
    await dialog.getByLabel('Token of the platform').fill(token)
    await button(dialog, 'Test token').click()
    await dialog.getByText(answer).waitFor()
  }
  const good = await sign({ repository_id: '74', ref: 'refs/heads/main' })
  await test('no token', 'Refused: it is no signed token')
  await test(await sign({ repository_id: '74', ref: 'refs/heads/other' }), 'Refused: a claim of the rule is missing, or has another value.')
  await test(await sign({ repository_id: '74', ref: 'refs/heads/main', aud: 'other' }), 'Refused: its “aud” is not the audience of the rule.')
  await test(good, 'Accepted: Deployment exchanges this token.')
  t.notMatch(await page.locator('.curl pre').textContent(), good, 'the command has no token')
  const events = await dialog.getByRole('region', { name: 'Logins of Deployment' }).locator('tbody tr').allInnerTexts()
  t.equal(events.length, 2)
  t.match(events.join('\n'), /Refused\s+a claim of the rule is missing, or has another value\. · \{[^}]*"repository_id":"75"/)
  t.match(events.join('\n'), /Login\s+repo:o\/r · run 7/)
  await look(t, page, 'use and test of a rule')
  await page.keyboard.press('Escape')

  // A new name alone keeps the access tokens.
  await button(page, /^Change Deployment/).click()
  await dialog.getByLabel('Name of the rule').fill('Deploy')
  const renamed = page.waitForRequest((request) => request.method() === 'PATCH')
  await look(t, page, 'change of a rule')
  await button(dialog, 'Save rule').click()
  t.strictSame((await renamed).postDataJSON(), { name: 'Deploy' })
  await said(page, 'Changed the rule Deploy.')
  await dialog.waitFor({ state: 'detached' })
  await button(page, /^Change Deploy/).click()
  await dialog.getByLabel('Value of claim 4').fill('refs/tags/v2')
  await dialog.locator('summary', { hasText: 'secret (read, decrypt)' }).click()
  await dialog.getByLabel('secret:write').check()
  await dialog.getByLabel('Place').selectOption('all')
  await dialog.getByLabel('Seconds for which').fill('300')
  await dialog.getByLabel('be used again').selectOption('false')
  await button(dialog, 'Save rule').click()
  await dialog.waitFor({ state: 'detached' })
  t.match((await rules()).body.data[0].attributes, {
    name: 'Deploy',
    claims: { repository_id: '74', ref: ['refs/heads/main', 'refs/tags/v2'] },
    scopes: ['secret:read', 'secret:decrypt', 'secret:write'],
    restrictions: [],
    lifetime: 300,
    single_use: false
  })

  await confirm(page, /^Disable Deploy/, 'workload.disable')
  await said(page, 'Disabled the rule Deploy.')
  await table.getByText('Disabled', { exact: true }).waitFor()
  t.equal(await exchange(good), 400)
  await button(page, /^Use and test Deploy/).click()
  await test(good, 'Refused: the rule is disabled. Everything else is right.')
  await page.keyboard.press('Escape')
  await button(page, /^Enable Deploy/).click()
  await said(page, 'Enabled the rule Deploy.')
  t.equal(await exchange(good), 200)
  await confirm(page, /^Delete rule Deploy/, 'workload.delete')
  await said(page, 'Deleted the rule Deploy.')
  await page.getByText('There is no rule.').waitFor()
  t.equal((await nimbus.call('GET', `/organizations/nimbus/workloads/${id}`)).status, 404)
}
