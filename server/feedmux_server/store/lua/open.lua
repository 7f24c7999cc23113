-- ARGV: instance_id, nonce, takeover ('1' or '0'), lease_ms, until_ms
local too_late = late(ARGV[5])
if too_late then return too_late end
local stored = read('epoch', 'deleted', 'nonce', 'owner', 'lease_until_ms')
if absent(stored[1], stored[2]) then return {'NOT_FOUND'} end
if damaged() then return {'DAMAGED'} end
local now = now_ms()
local active = (stored[3] or '') ~= '' and (number(stored[5]) or 0) > now
-- A client without an instance id cannot be distinguished from another client.
local same = ARGV[1] ~= '' and stored[4] == ARGV[1]
if active and not same and ARGV[3] ~= '1' then return {'BUSY', stored[4]} end
redis.call('HSET', key,
  'epoch', int(next_epoch(stored[1], now)), 'nonce', ARGV[2], 'owner', ARGV[1],
  'lease_until_ms', int(now + tonumber(ARGV[4])),
  -- An open call that its client has given up may arrive after the call that replaced it: the client opens once more.
  'fence_cause', same and 'LEASE' or 'TAKEOVER')
local reply = answer('OK', now)
reply[4] = (active and not same) and 1 or 0  -- taken from another instance
return reply
