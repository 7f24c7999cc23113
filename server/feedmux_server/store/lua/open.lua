-- ARGV: instance_id, nonce, takeover ('1' or '0'), lease_ms, until_ms
local too_late = late(ARGV[5])
if too_late then return too_late end
local stored = read('epoch', 'deleted', 'nonce', 'owner', 'lease_until_ms', 'lease_ms')
if absent(stored[1], stored[2]) then return not_found(stored[2]) end
if damaged() then return {'DAMAGED'} end
local now = now_ms()
local lease_until = number(stored[5]) or 0
local active = (stored[3] or '') ~= '' and lease_until > now
-- A client without an instance id cannot be distinguished from another client.
local same = ARGV[1] ~= '' and stored[4] == ARGV[1]
if active and not same and ARGV[3] ~= '1' then
  -- A lease by a clock that was ahead would last as long as that clock was ahead. Older versions stored no length.
  local longest = now + (number(stored[6]) or tonumber(ARGV[4]))
  if lease_until > longest then redis.call('HSET', key, 'lease_until_ms', int(longest)) end
  return {'BUSY', stored[4]}
end
local epoch = int(next_epoch(stored[1], now))
if not same then redis.call('HSET', key, 'takeover_epoch', epoch) end
redis.call('HSET', key,
  'epoch', epoch, 'nonce', ARGV[2], 'owner', ARGV[1],
  'lease_until_ms', int(now + tonumber(ARGV[4])), 'lease_ms', ARGV[4],
  -- An open call that its client has given up may arrive after the call that replaced it: the client opens once more.
  'fence_cause', same and 'LEASE' or 'TAKEOVER')
local reply = answer('OK', now)
reply[4] = (active and not same) and 1 or 0  -- taken from another instance
reply[5] = (stored[3] or '') ~= '' and 1 or 0  -- the last holder has not released it
return reply
