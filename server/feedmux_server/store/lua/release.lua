-- ARGV: epoch, nonce, delivered ('' if nothing was delivered under the lease), follows_lost ('1' or '0'),
--   position ('' if the session has none to compare)
-- LOST: Redis has lost the lease, or has another position than it has answered, so it has lost the last commit. The
-- session then still has its lease, and stores what it knows before it releases again.
-- A nonce of 'lost' is no session's: the lease is free, and open.lua answers the next host of the group that its
-- predecessor was lost. A host that releases with follows_lost leaves members with events in hand, or has been asked to
-- end before it had stored what the members of a lost host told it.
-- The owner stays: a late open call of the same client takes nothing from another one.
local stored = read('epoch', 'nonce', 'position')
local epoch = number(stored[1])
if not epoch or epoch < tonumber(ARGV[1]) then return {'LOST'} end
if stored[1] ~= ARGV[1] or stored[2] ~= ARGV[2] then return {'NOT_OURS'} end
if ARGV[5] ~= '' and stored[3] ~= ARGV[5] then return {'LOST'} end
redis.call('HSET', key, 'nonce', ARGV[4] == '1' and 'lost' or '', 'lease_until_ms', '0', 'fence_cause', 'LEASE',
  'used_ms', int(now_ms()))
if ARGV[3] ~= '' then redis.call('HSET', key, 'delivered', ARGV[3]) end
return {'OK'}
