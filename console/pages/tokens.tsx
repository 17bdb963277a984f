import { useState } from 'preact/hooks'
import { call, type Schemas } from '../api.ts'
import { BASE } from '../auth.ts'
import { chosenPart, partInWords, PartPicker } from '../part-picker.tsx'
import { ALL_SCOPES, scopesOf, wordsOfScopes, type Ability } from '../scopes.ts'
import { Act, changes, Check, Danger, Field, Form, Help, List, say, saying, Section, Time, useList, type Fields } from '../ui.tsx'

type Token = Schemas['ApiToken']
interface NewValue { name: string, value: string }

/** The presets of the picker. */
const PRESETS: Record<string, readonly Ability[]> = {
  'Read-only': ['secret:read', 'secret:decrypt', 'project:read', 'target:read', 'environment:read'],
  Deploy: ['secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'project:read', 'target:read', 'environment:read'],
  Full: ['*']
}

/** The tokens of the organization. */
export function TokensPage ({ organization }: { organization: string }) {
  const tokens = useList(async (page) =>
    (await call('listApiTokens', { path: { organization }, query: { page, per_page: 25, sort: '-created_at' } })).data)
  const [shown, setShown] = useState<NewValue>()
  return (
    <>
      <h1>Tokens and applications</h1>
      <Help of='token' />
      {shown !== undefined && <NewToken organization={organization} {...shown} close={() => setShown(undefined)} />}
      <Section title='Create a token'>
        <CreateToken organization={organization} done={(created) => { setShown(created); changes.value++ }} />
      </Section>
      <Section title='Tokens'>
        <List of={tokens} empty='There is no token. A build or a service needs one: create it above.'>
          {(found) => <ul class='list'>{found.map((token) => <TokenItem key={token.id} {...{ organization, token }} show={setShown} />)}</ul>}
        </List>
      </Section>
      <Section title='Applications'>
        <p>Applications act for a person, such as the command line tool, not for an organization. So each person sees the own ones on <a href={`${BASE.pathname}account`}>the account page</a>, with their permissions, and ends their access there.</p>
      </Section>
    </>
  )
}

/** The value of a new token: shown once, with commands to paste. The value is not in the commands. */
function NewToken ({ organization, name, value, close }: NewValue & { organization: string, close: () => void }) {
  return (
    <section class='once' role='alert'>
      <h2>The token {name}</h2>
      <p>Copy it now. It is shown only this once.</p>
      <pre tabIndex={0} class='value'>{value}</pre>
      <Act name='token.copy' kind='main' run={() => navigator.clipboard.writeText(value)} />
      <p>Then paste these lines into a shell. The first one asks for the token, so that no history has it:</p>
      <pre tabIndex={0}>{`read -rs STRONGROOM_TOKEN && export STRONGROOM_TOKEN
curl -H "Authorization: Bearer $STRONGROOM_TOKEN" '${new URL(`api/v1/${organization}/projects`, BASE).href}'`}
      </pre>
      <button type='button' onClick={close}>I have copied it</button>
    </section>
  )
}

function CreateToken ({ organization, done }: { organization: string, done: (created: NewValue) => void }) {
  const [abilities, setAbilities] = useState<readonly Ability[]>(PRESETS['Read-only']!)
  const scopes = scopesOf(abilities)
  const create = async ({ name = '', expires_at = '', project = '', ...fields }: Fields) => {
    const days = Number(expires_at)
    const { data } = await call('createApiToken', {
      path: { organization },
      body: {
        name,
        description: fields.description || null,
        abilities: [...abilities],
        ...(days > 0 && { expires_at: new Date(Date.now() + days * 86_400_000).toISOString() }),
        ...(project !== '' && { restrictions: [{ project, ...chosenPart(fields) }] })
      },
      dangerous: ['api-token:create', ...scopes]
    })
    done({ name, value: data.token })
    if (data.warning !== undefined) say(data.warning)
  }
  return (
    <Form name='token.create' run={create}>
      <Field label='Name of the token' name='name' required hint='Such as the program that uses it.' />
      <Field label='Description, if you like' name='description' hint='What it is for, or who to ask: at most 500 characters.' />
      <fieldset>
        <legend>What may it do?</legend>
        <div class='choices'>
          {Object.entries(PRESETS).map(([preset, scopes]) => (
            <Check key={preset} type='radio' name='preset' value={preset} label={preset} checked={String(scopes) === String(abilities)} onChange={() => setAbilities(scopes)} />
          ))}
        </div>
        <details>
          <summary>Choose each scope</summary>
          <div class='choices'>
            {ALL_SCOPES.map((scope) => (
              <Check
                key={scope} name='scope' value={scope} label={scope} checked={scopes.includes(scope)}
                onChange={(isOn) => setAbilities(isOn ? [...scopes, scope] : scopes.filter((one) => one !== scope))}
              />
            ))}
          </div>
        </details>
      </fieldset>
      <fieldset>
        <legend>Where? If you choose nothing: in the whole organization</legend>
        <PartPicker organization={organization} none='All projects' />
      </fieldset>
      <Field label='Expires after' name='expires_at' options={[['', '90 days: the longest time'], ['30', '30 days'], ['7', '7 days'], ['1', 'a day']]} />
    </Form>
  )
}

function TokenItem ({ organization, token, show }: {
  organization: string, token: Token, show: (shown: { name: string, value: string }) => void
}) {
  const { id, name, abilities, restrictions, expires_at, last_used_at, created_by, token_prefix, token_suffix } = token
  const path = { organization, id }
  const rotate = async ({ overlap_seconds = '0' }: Fields) => {
    const { data } = await call('rotateApiToken', {
      path, body: { overlap_seconds: Number(overlap_seconds) }, dangerous: ['api-token:create', 'api-token:update', ...scopesOf(abilities)]
    })
    show({ name, value: data.token })
    changes.value++
  }
  const revoke = async () => saying(call('deleteApiToken', { path }), `Revoked the token ${name}.`)
  return (
    <li>
      <p><strong>{name}</strong> <code>{token_prefix}…{token_suffix}</code></p>
      {token.description && <p>{token.description}</p>}
      <dl class='facts'>
        <div><dt>May</dt><dd>{wordsOfScopes(abilities)}</dd></div>
        <div><dt>Where</dt><dd>{restrictions.length === 0 ? 'the whole organization' : restrictions.map(({ project, ...part }) => partInWords(project, part)).join('; ')}</dd></div>
        <div><dt>Last used</dt><dd><Time at={last_used_at} /></dd></div>
        <div><dt>Expires</dt><dd><Time at={expires_at} /></dd></div>
        <div><dt>Made by</dt><dd>{created_by?.name ?? 'the operator'}</dd></div>
      </dl>
      <details>
        <summary>Rotate or revoke<span class='hidden'> {name}</span></summary>
        <Form name='token.rotate' run={rotate}>
          <Field label={`The old value of ${name} stays valid for`} name='overlap_seconds' options={[['0', 'no time'], ['3600', 'an hour'], ['86400', 'a day'], ['604800', 'a week']]} />
        </Form>
        <Danger name='token.revoke' title={`Revoke ${name}?`} description={name} run={revoke}>
          <p>Programs with this token are refused at once.</p>
        </Danger>
      </details>
    </li>
  )
}
