import { useState } from 'preact/hooks'
import { call, type Schemas } from './api.ts'
import { titleOf, type Level } from './levels.ts'
import { chosenPart, partInWords, PartPicker } from './part-picker.tsx'
import { can } from './rights.ts'
import { scopesOfRoles } from './scopes.ts'
import { PROJECT_ROLE_OPTIONS, ROLE_OPTIONS, roleName } from './session.ts'
import { Act, Check, Field, Form, InDialog, List, saying, Section, Table, Time, useList, type Fields } from './ui.tsx'

type Role = Schemas['Role']

/** The scopes for an invitation, which gives the role in the organization and that in a place. */
const scopesFor = (role: string, placeRole: string | null | undefined): readonly string[] => placeRole == null
  ? scopesOfRoles('member:create', role)
  : [...new Set([...scopesOfRoles('member:create', role, placeRole), 'team:update'])]

export function Invitations ({ organization }: { organization: string }) {
  const path = { organization }
  const invitations = useList(async (page) => (await call('listInvitations', { path, query: { page, per_page: 50 } })).data)
  const send = (invitation: string, role: string, placeRole: string | null) => async () =>
    saying(call('sendInvitation', { path: { ...path, invitation }, body: {}, dangerous: scopesFor(role, placeRole) }))
  const withdraw = (invitation: string, email: string) => async () =>
    saying(call('withdrawInvitation', { path: { ...path, invitation }, dangerous: ['member:delete'] }), `The invitation of ${email} is withdrawn.`)
  return (
    <Section title='Invitations'>
      <List of={invitations} empty='No invitation is open.'>
        {(found) => (
          <Table
            label='Open invitations' head={['Address', 'Role', 'Until', 'Change']}
            rows={found.map(({ id, attributes: { email, role, place, place_names, place_role, expires_at } }) => [
              id, email, place_role === null ? roleName(role) : `${roleName(place_role)} in ${place === null ? 'a deleted place' : partInWords(place, place_names!)}`, <Time at={expires_at} />, (
              <>
                <Act name='invitation.send' description={email} run={send(id, role, place_role)} />
                <Act name='invitation.withdraw' description={email} run={withdraw(id, email)} />
              </>
              )])}
          />
        )}
      </List>
      <InviteForm organization={organization} />
    </Section>
  )
}

/** Address, place, role there. `at`: the place; else the person chooses one, or the whole organization. */
function InviteForm ({ organization, at, done }: { organization: string, at?: Level, done?: () => void }) {
  const [isWhole, setWhole] = useState(at === undefined)
  const invite = async ({ email = '', role = '', ...fields }: Fields) => {
    const project = at?.project ?? fields.project ?? ''
    if (!isWhole && project === '') throw new Error('Choose a project first.')
    const level = at === undefined ? fields.level : [at.target, at.environment].filter(Boolean).join('/')
    const place = { project, ...chosenPart({ inherited: 'true', ...fields, level: level ?? '' }) }
    const body = isWhole ? { email, role: role as Role } : { email, role: 'guest' as const, place, place_role: role as Exclude<Role, 'guest' | 'billing_manager'> }
    await saying(call('inviteMember', { path: { organization }, body, dangerous: scopesFor(body.role, isWhole ? null : role) }))
    done?.()
  }
  const canPlace = can(['team:update'], {})
  return (
    <Form name='member.invite' run={invite} at={{}}>
      <Field label='E-mail address' name='email' type='email' required />
      {at === undefined && canPlace && (
        <fieldset class='segments'>
          <legend class='hidden'>Where</legend>
          <Check type='radio' name='where' value='whole' label='The whole organization' checked={isWhole} onChange={() => setWhole(true)} />
          <Check type='radio' name='where' value='place' label='One project or environment' checked={!isWhole} onChange={() => setWhole(false)} />
        </fieldset>
      )}
      {!isWhole && at === undefined && <PartPicker organization={organization} none='Choose one' inherits />}
      {isWhole
        ? <Field key='whole' label='Role in the organization' name='role' value='member' options={ROLE_OPTIONS} />
        : <Field key='place' label='Role there' name='role' value='member' options={PROJECT_ROLE_OPTIONS} />}
    </Form>
  )
}

export function InviteHere ({ level }: { level: Level }) {
  if (!can(['team:update'], {})) return null
  return (
    <InDialog name='member.invite' label='Invite a colleague here' kind='plain' at={{}} title={`Invite a colleague to ${titleOf(level)}`}>
      {(close) => (
        <>
          <p>The person sees this place and the values that it inherits, and nothing else of the organization.</p>
          <InviteForm organization={level.organization} at={level} done={close} />
        </>
      )}
    </InDialog>
  )
}
