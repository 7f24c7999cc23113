package feedmux

// state is what the connection of a session does now. All clients have the same table of states; docs/protocol.md shows
// it.
type state string

const (
	// stateOpening: the first stream is being opened.
	stateOpening state = "OPENING"
	// stateRetrying: waits before the next attempt to open the first stream.
	stateRetrying state = "RETRYING"
	stateOpen     state = "OPEN"
	// stateWaiting: waits before the next attempt to reopen.
	stateWaiting state = "WAITING"
	// stateReopening: another stream is being opened.
	stateReopening state = "REOPENING"
	// stateLastOpening: closed without a stream, one more stream is being opened, only to send the acks.
	stateLastOpening state = "LAST_OPENING"
	// stateClosing: closed with an open stream, the server stores the acks and ends the stream.
	stateClosing state = "CLOSING"
	stateEnded   state = "ENDED"
)

// event is what happens to the connection.
type event string

const (
	eventOpened  event = "OPENED"
	eventMessage event = "MESSAGE"
	// eventLost: the stream ended with an error that passes, or without an error, or was silent for too long.
	eventLost event = "LOST"
	// eventMoved: the stream ended because the stored position was moved.
	eventMoved event = "MOVED"
	// eventFailed: the stream ended with any other error, or the server broke the protocol.
	eventFailed event = "FAILED"
	// eventTimeOver: the time to open, or to reopen, is over.
	eventTimeOver    event = "TIME_OVER"
	eventBackoffOver event = "BACKOFF_OVER"
	// eventClose: closed by the user, and the server has confirmed all acks.
	eventClose event = "CLOSE"
	// eventCloseWithAcks: closed by the user, and the server may not have some acks.
	eventCloseWithAcks event = "CLOSE_WITH_ACKS"
	// eventAbandon: the time to close is over, or the user dropped the session.
	eventAbandon event = "ABANDON"
)

// action is what the client does about an event, apart from the change of its state.
type action string

const (
	// actionNone: the next stream resumes after the last ack.
	actionNone action = "NONE"
	// actionForget: forget the unacked events, as the next stream begins at the stored position.
	actionForget action = "FORGET"
	// actionRaise: end the session with the error.
	actionRaise action = "RAISE"
)

type situation struct {
	state state
	event event
}

type transition struct {
	next   state
	action action
}

// transitions is the table of states. A pair that it does not have is illegal; if the server sends a message in such a
// state, it breaks the protocol.
var transitions = map[situation]transition{
	{stateOpening, eventOpened}:            {stateOpen, actionNone},
	{stateOpening, eventLost}:              {stateRetrying, actionNone},
	{stateOpening, eventMoved}:             {stateRetrying, actionForget},
	{stateOpening, eventFailed}:            {stateEnded, actionRaise},
	{stateOpening, eventTimeOver}:          {stateEnded, actionRaise},
	{stateOpening, eventClose}:             {stateEnded, actionNone},
	{stateOpening, eventAbandon}:           {stateEnded, actionNone},
	{stateRetrying, eventBackoffOver}:      {stateOpening, actionNone},
	{stateRetrying, eventTimeOver}:         {stateEnded, actionRaise},
	{stateRetrying, eventClose}:            {stateEnded, actionNone},
	{stateRetrying, eventCloseWithAcks}:    {stateEnded, actionNone},
	{stateRetrying, eventAbandon}:          {stateEnded, actionNone},
	{stateOpen, eventMessage}:              {stateOpen, actionNone},
	{stateOpen, eventLost}:                 {stateWaiting, actionNone},
	{stateOpen, eventMoved}:                {stateWaiting, actionForget},
	{stateOpen, eventFailed}:               {stateEnded, actionRaise},
	{stateOpen, eventTimeOver}:             {stateEnded, actionRaise},
	{stateOpen, eventClose}:                {stateClosing, actionNone},
	{stateOpen, eventCloseWithAcks}:        {stateClosing, actionNone},
	{stateOpen, eventAbandon}:              {stateEnded, actionNone},
	{stateWaiting, eventBackoffOver}:       {stateReopening, actionNone},
	{stateWaiting, eventTimeOver}:          {stateEnded, actionRaise},
	{stateWaiting, eventClose}:             {stateEnded, actionNone},
	{stateWaiting, eventCloseWithAcks}:     {stateLastOpening, actionNone},
	{stateWaiting, eventAbandon}:           {stateEnded, actionNone},
	{stateReopening, eventOpened}:          {stateOpen, actionNone},
	{stateReopening, eventLost}:            {stateWaiting, actionNone},
	{stateReopening, eventMoved}:           {stateWaiting, actionForget},
	{stateReopening, eventFailed}:          {stateEnded, actionRaise},
	{stateReopening, eventTimeOver}:        {stateEnded, actionRaise},
	{stateReopening, eventClose}:           {stateEnded, actionNone},
	{stateReopening, eventCloseWithAcks}:   {stateLastOpening, actionNone},
	{stateReopening, eventAbandon}:         {stateEnded, actionNone},
	{stateLastOpening, eventOpened}:        {stateClosing, actionNone},
	{stateLastOpening, eventLost}:          {stateEnded, actionNone},
	{stateLastOpening, eventMoved}:         {stateEnded, actionNone},
	{stateLastOpening, eventFailed}:        {stateEnded, actionNone},
	{stateLastOpening, eventTimeOver}:      {stateEnded, actionNone},
	{stateLastOpening, eventBackoffOver}:   {stateLastOpening, actionNone},
	{stateLastOpening, eventClose}:         {stateEnded, actionNone},
	{stateLastOpening, eventCloseWithAcks}: {stateLastOpening, actionNone},
	{stateLastOpening, eventAbandon}:       {stateEnded, actionNone},
	{stateClosing, eventMessage}:           {stateClosing, actionNone},
	{stateClosing, eventLost}:              {stateEnded, actionNone},
	{stateClosing, eventMoved}:             {stateEnded, actionNone},
	{stateClosing, eventFailed}:            {stateEnded, actionNone},
	{stateClosing, eventTimeOver}:          {stateEnded, actionNone},
	{stateClosing, eventClose}:             {stateClosing, actionNone},
	{stateClosing, eventCloseWithAcks}:     {stateClosing, actionNone},
	{stateClosing, eventAbandon}:           {stateEnded, actionNone},
	{stateEnded, eventClose}:               {stateEnded, actionNone},
	{stateEnded, eventCloseWithAcks}:       {stateEnded, actionNone},
	{stateEnded, eventAbandon}:             {stateEnded, actionNone},
}

// allows says whether the event may happen in the state.
func (s state) allows(happened event) bool {
	_, ok := transitions[situation{s, happened}]
	return ok
}

// after returns what the event leads to. It panics if the event cannot happen in the state.
func (s state) after(happened event) (state, action) {
	found, ok := transitions[situation{s, happened}]
	if !ok {
		panic("feedmux: " + string(happened) + " in the state " + string(s))
	}
	return found.next, found.action
}

// isFirstOpening says whether the session has never been open.
func (s state) isFirstOpening() bool { return s == stateOpening || s == stateRetrying }

// hasStream says whether the server has sent Opened on the present stream.
func (s state) hasStream() bool { return s == stateOpen || s == stateClosing }
