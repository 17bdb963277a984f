import { useState } from 'preact/hooks'
import { call, type Schemas } from '../api.ts'
import { BASE } from '../auth.ts'
import { chosenPart, partsInWords, PartPicker, ScopeChoices, ScopesInWords } from '../part-picker.tsx'
import { ALL_SCOPES, scopesOf, type Ability } from '../scopes.ts'
import {
  Act, changes, Check, Danger, Field, Form, Help, InDialog, List, ListSearch, say, saying, Section, Table,
  Time, useList, useLoad, type Fields
} from '../ui.tsx'

type Token = Schemas['ApiToken']
interface NewValue { name: string, value: string }
type Filter = '' | 'ending' | 'organization' | 'user'

const PRESETS: Record<string, readonly Ability[]> = {
  'Read-only': ['secret:read', 'secret:decrypt', 'project:read', 'target:read', 'environment:read'],
  Deploy: ['secret:read', 'secret:write', 'secret:decrypt', 'secret:history', 'project:read', 'target:read', 'environment:read'],
  Full: ['*']
}
const DAY = 24 * 60 * 60 * 1000

export function TokensPage ({ organization }: { organization: string }) {
  const path = { organization }
  const [search, setSearch] = useState('')
  const [filter, setFilter] = useState<Filter>('')
  const query = { search, ...(filter === 'ending' && { ending: true }), ...((filter === 'organization' || filter === 'user') && { owner: filter }) }
  const tokens = useList(async (page) =>
    (await call('listApiTokens', { path, query: { ...query, page, per_page: 25, sort: '-created_at' } })).data, [search, filter])
  const ending = useLoad(async () => (await call('listApiTokens', { path, query: { ending: true, per_page: 1 } })).data.meta.total, [])
  const [shown, setShown] = useState<NewValue>()
  const show = (value: NewValue) => { setShown(value); changes.value++ }
  return (
    <>
      <Help text='A token lets a program call the API. It never allows more than its scopes, and can be limited to a part of the hierarchy.' />
      {shown !== undefined && <NewToken organization={organization} {...shown} close={() => setShown(undefined)} />}
      {ending.value !== undefined && ending.value > 0 && (
        <p class='attention'>
          {ending.value === 1 ? 'One token ends' : `${ending.value} tokens end`} within 14 days.{' '}
          {filter !== 'ending' && <Act name='token.ending' kind='plain' run={() => setFilter('ending')} />}
        </p>
      )}
      <div class='toolbar'>
        <ListSearch label='Search by name' change={setSearch} />
        <Field
          key={filter} label='Which tokens' name='filter' value={filter} isCompact onInput={(value) => setFilter(value as Filter)}
          options={[['', 'All tokens'], ['ending', 'Ending within 14 days'], ['organization', 'Of the organization'], ['user', 'Of people']]}
        />
        <InDialog name='token.create' kind='main' title='Create a token'>
          {(close) => <CreateToken organization={organization} done={(created) => { show(created); close() }} />}
        </InDialog>
      </div>
      <List of={tokens} empty={search === '' && filter === '' ? 'There is no token. A build or a service needs one: create one.' : 'No token matches.'}>
        {(found) => (
          <Table
            label='Tokens' head={['Name', 'May', 'Where', 'Made by', 'Ends', 'Last used', 'Change']}
            rows={found.map((token) =>
              [token.id, ...cellsOf(token), <Change organization={organization} token={token} show={show} />])}
          />
        )}
      </List>
      <Section title='Applications'>
        <p>Applications act for a person, such as the command line tool, not for an organization. Everyone sees their own on <a href={`${BASE.pathname}account`}>the account page</a>, with its permissions, and can end its access there.</p>
      </Section>
    </>
  )
}

function cellsOf (token: Token) {
  const { name, description, abilities, owner, expires_at, created_by } = token
  const sorted = (scopes: readonly Ability[]) => [...scopes].sort().join()
  const [preset] = Object.entries(PRESETS).find(([, scopes]) => sorted(scopes) === sorted(abilities)) ?? []
  const isEnding = expires_at !== null && Date.parse(expires_at) < Date.now() + 14 * DAY
  return [
    <>{name} <code>{token.token_prefix}…{token.token_suffix}</code>{description && <small>{description}</small>}</>,
    preset === undefined ? <ScopesInWords of={abilities} /> : preset === 'Full' ? 'everything' : preset,
    partsInWords(token, 'the whole organization'),
    <>{created_by?.name ?? 'the operator'}{owner === 'organization' && <small>of the organization</small>}</>,
    <span class={isEnding ? 'attention' : ''}><Time at={expires_at} /></span>,
    <Time at={token.last_used_at} />
  ] as const
}

/** The value of a new token: shown once, with commands to paste. The value is not in the commands. */
const NewToken = ({ organization, name, value, close }: NewValue & { organization: string, close: () => void }) => (
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

function CreateToken ({ organization, done }: { organization: string, done: (created: NewValue) => void }) {
  const [abilities, setAbilities] = useState<readonly Ability[]>(PRESETS['Read-only']!)
  const [owner, setOwner] = useState('')
  const scopes = scopesOf(abilities)
  const create = async ({ name = '', expires_at = '', project = '', owner, ...fields }: Fields) => {
    const days = Number(expires_at)
    const { data } = await call('createApiToken', {
      path: { organization },
      body: {
        name,
        description: fields.description || null,
        abilities: [...abilities],
        ...(owner === 'organization' && { owner }),
        ...(days > 0 && { expires_at: new Date(Date.now() + days * DAY).toISOString() }),
        ...(project !== '' && { restrictions: [{ project, ...chosenPart(fields) }] })
      },
      dangerous: ['api-token:create', ...scopes]
    })
    done({ name, value: data.token })
    setOwner('')
    if (data.warning !== undefined) say(data.warning)
  }
  return (
    <Form name='token.create' run={create}>
      <Field label='Name of the token' name='name' required hint='Such as the program that uses it.' />
      <Field label='Description, if you like' name='description' hint='What it is for, or who to ask: at most 500 characters.' />
      <Field
        label='Belongs to' name='owner' onInput={setOwner} options={[['', 'You'], ['organization', 'The organization']]}
        hint={owner === '' ? 'It ends when you leave the organization.' : 'It stays when you leave. It may do at most what your role in the organization may.'}
      />
      <fieldset>
        <legend>What may it do?</legend>
        <div class='choices'>
          {Object.entries(PRESETS).map(([preset, scopes]) => (
            <Check key={preset} type='radio' name='preset' value={preset} label={preset} checked={String(scopes) === String(abilities)} onChange={() => setAbilities(scopes)} />
          ))}
        </div>
        <details>
          <summary>Choose each scope</summary>
          <ScopeChoices of={ALL_SCOPES} chosen={scopes} choose={setAbilities} />
        </details>
      </fieldset>
      <fieldset>
        <legend>Where? If you choose nothing: in the whole organization</legend>
        <PartPicker organization={organization} none='All projects' inherits />
      </fieldset>
      <Field
        key={owner} label='Expires after' name='expires_at'
        options={[owner === '' ? ['', '90 days: the longest time'] : ['', 'Never'], ...owner === '' ? [] : [['365', 'a year'], ['90', '90 days']] as const, ['30', '30 days'], ['7', '7 days'], ['1', 'a day']]}
      />
    </Form>
  )
}

function Change ({ organization, token: { id, name, abilities }, show }: {
  organization: string, token: Token, show: (shown: NewValue) => void
}) {
  const path = { organization, id }
  const rotate = async ({ overlap_seconds = '0' }: Fields) => {
    const { data } = await call('rotateApiToken', {
      path, body: { overlap_seconds: Number(overlap_seconds) }, dangerous: ['api-token:create', 'api-token:update', ...scopesOf(abilities)]
    })
    show({ name, value: data.token })
  }
  const revoke = async () => saying(call('deleteApiToken', { path }), `Revoked the token ${name}.`)
  return (
    <>
      <InDialog name='token.rotate' description={name} title={`Rotate ${name}?`}>
        {(close) => (
          <Form name='token.rotate' run={async (fields) => { await rotate(fields); close() }}>
            <p>The token gets a new value. It is shown once.</p>
            <Field label={`The old value of ${name} stays valid for`} name='overlap_seconds' options={[['0', 'no time'], ['3600', 'an hour'], ['86400', 'a day'], ['604800', 'a week']]} />
          </Form>
        )}
      </InDialog>
      <Danger name='token.revoke' title={`Revoke ${name}?`} description={name} run={revoke}>
        <p>Programs with this token are refused at once.</p>
      </Danger>
    </>
  )
}
